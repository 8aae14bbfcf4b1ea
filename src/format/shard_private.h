/* shard_private.h - names that the shard_*.c files share; not for other folders. */
#ifndef FORMAT_SHARD_PRIVATE_H
#define FORMAT_SHARD_PRIVATE_H

#include "base/error.h"
#include "base/checked.h"

#define SHARD_INDEX_NAME "index.json"
#define SHARD_NAME_FORMAT "shard-%05zu.shd"

/* Removes the files of dir that are called like shards, and temporaries of such. */
enum status shard_remove_files(const char *dir, struct error *e) MUST_CHECK;

#endif
