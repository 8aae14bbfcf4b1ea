/* text_stream.h - tokens to text as they come: stop texts, and how much may be shown already. */
#ifndef GPT2_INFER_TEXT_STREAM_H
#define GPT2_INFER_TEXT_STREAM_H

#include "base/strbuf.h"
#include "gpt2-infer/job.h"

struct text_stream {
    struct strbuf text;
    bool stopped; /* a stop text appeared; text ends before it */
};

/* Append a token's bytes. False only when out of memory. */
bool text_stream_put(struct text_stream *t, const struct generate_params *p, const char *bytes,
                     size_t length) MUST_CHECK;
/* Bytes of the text that no later token can take back: not the beginning of a stop text, not a cut
 * UTF-8 character. Everything when final. */
size_t text_stream_safe(const struct text_stream *t, const struct generate_params *p, bool final);

#endif
