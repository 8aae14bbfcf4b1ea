/* config.h - the command line of sst2-fetch, and what it takes from the environment. */
#ifndef SST2_FETCH_CONFIG_H
#define SST2_FETCH_CONFIG_H

#include "base/options.h"
#include "sst2-fetch/locate.h"
#include "sst2-fetch/s3.h"

struct config {
    const char *split, *source, *output, *format, *holdout, *sha256;
    bool all;
    int64_t skip_bad;
    const char *cache_dir;
    bool cache, refresh, offline;
    int64_t retries;
    double retry_delay, connect_timeout, stall_timeout;
    const char *ca_file;
    const char *glue_url, *hub_url, *hub_dataset, *hub_config;
    int64_t parallel;
    const char *endpoint_url, *region, *profile;
    int64_t part_size;
    bool quiet;
};

extern const struct option_table config_table;

/* Read by main from the environment; NULL where unset. */
struct environment {
    const char *home, *tmpdir, *xdg_cache_home, *ca_file, *hub_token;
    struct s3_environment s3;
};

/* What the two amount to. Strings belong to the config and environment, or to here. */
struct settings {
    enum split split;
    double holdout;
    char sha256[65]; /* empty when not given */
    char *cache_dir; /* NULL: no cache */
    const char *tmpdir;
    const char *ca_file;
    struct s3_environment s3;
    char *credentials_file, *config_file;
};

enum status settings_resolve(struct settings *s, const struct config *c,
                             const struct environment *env, struct error *e) MUST_CHECK;
void settings_release(struct settings *s);

#endif
