/* pool.h - a fixed set of worker threads for parallel loops over independent items. */
#ifndef BASE_POOL_H
#define BASE_POOL_H

#include "base/error.h"
#include <stddef.h>

struct pool;

/* threads >= 1; the calling thread is one of them. */
enum status pool_create(struct pool **pool, int threads, struct error *e) MUST_CHECK;
/* Calls fn(arg, i, worker) once for each i in [0, n), worker in [0, threads); returns when all are
 * done. One pool_run at a time. Items start in increasing order. */
void pool_run(struct pool *pool, size_t n, void (*fn)(void *arg, size_t i, int worker), void *arg);
int pool_threads(const struct pool *pool);
void pool_free(struct pool *pool);
int cpu_count(void); /* processors this process may run on, at least 1 */

#endif
