/* hub.h - a split from the Hugging Face datasets server, page by page.
 *
 * GET BASE/rows?dataset=D&config=C&split=S&offset=O&length=100 answers
 *   {"rows": [{"row_idx": O, "row": {...}, "truncated_cells": []}, ...], "num_rows_total": N, ...}.
 * Several pages are asked for at once and written in order, one row object a line. */
#ifndef SST2_FETCH_HUB_H
#define SST2_FETCH_HUB_H

#include "sst2-fetch/cache.h"
#include "sst2-fetch/http.h"

struct hub {
    struct http *http;
    struct cache_entry *cache;
    const char *base_url, *dataset, *config;
    const char *token; /* Hugging Face access token, for data sets that need one; may be NULL */
    int parallel;
    bool quiet;
};

/* fd holds the lines of the first pages in its first `have` bytes when the version says so (its
 * etag is "rows:N", N rows in total): they are not asked for again. Checked: each page's row
 * numbers, that no cell was cut, and that every page tells the same total. */
enum status hub_fetch(const struct hub *h, const char *split, int fd, uint64_t have,
                      struct version *version, struct error *e) MUST_CHECK;

#endif
