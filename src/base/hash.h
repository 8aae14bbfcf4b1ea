/* hash.h - checksums and digests: XXH3 of the xxHash library, 64 bits.
 * They catch accidents (flipped bits, cut files), not adversaries. sha256.h is for downloads. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash64(const void *data, size_t bytes);

struct hash_state;                 /* streaming form; owned by the caller, freed with hash_free */
struct hash_state *hash_new(void); /* NULL when out of memory */
void hash_update(struct hash_state *h, const void *data, size_t bytes);
uint64_t hash_digest(const struct hash_state *h); /* may be called at any time */
void hash_free(struct hash_state *h);

#endif
