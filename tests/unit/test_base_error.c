/* test_base_error.c - messages, context, cutting; growing strings. */
#include "base/error.h"
#include "base/strbuf.h"
#include "tap.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

int main(void)
{
    struct error e;
    CASE("set, context and errno build one sentence")
    {
        CHECK_INT(error_set(&e, STATUS_DATA, "block %d: bad checksum", 3), STATUS_DATA);
        CHECK_INT(error_context(&e, "reading %s", "x.tok"), STATUS_DATA);
        CHECK_STR(e.message, "reading x.tok: block 3: bad checksum");
        errno = ENOSPC;
        CHECK_INT(error_errno(&e, "writing %s", "y"), STATUS_FAILED);
        CHECK_STR(e.message, "writing y: No space left on device");
        CHECK_INT(errno, ENOSPC);
        CHECK_INT(error_memory(&e, 4096, "a table"), STATUS_FAILED);
        CHECK_STR(e.message, "out of memory allocating 4096 bytes for a table");
        error_clear(&e);
        CHECK_INT(e.status, STATUS_OK);
        CHECK_STR(e.message, "");
    }
    CASE("context may quote the message that it replaces")
    {
        error_set(&e, STATUS_USAGE, "inner");
        error_context(&e, "outer (%s)", e.message);
        CHECK_STR(e.message, "outer (inner): inner");
    }
    CASE("long messages are cut and say so")
    {
        char longer[3 * sizeof e.message];
        memset(longer, 'x', sizeof longer - 1);
        longer[sizeof longer - 1] = '\0';
        error_set(&e, STATUS_DATA, "%s", longer);
        CHECK_INT(strlen(e.message), sizeof e.message - 1);
        CHECK_STR(e.message + sizeof e.message - 4, "...");
        error_context(&e, "file");
        CHECK_INT(strlen(e.message), sizeof e.message - 1);
        CHECK(strncmp(e.message, "file: xxx", 9) == 0);
        CHECK_STR(e.message + sizeof e.message - 4, "...");
        longer[sizeof e.message - 1] = '\0'; /* fits to the byte */
        error_set(&e, STATUS_DATA, "%s", longer);
        CHECK_STR(e.message, longer);
    }
    CASE("strbuf grows by any kind of append")
    {
        struct strbuf s = {0};
        CHECK(strbuf_append(&s, NULL, 0));
        CHECK_STR(s.data, "");
        for (int i = 0; i < 1000; i++) {
            CHECK(strbuf_puts(&s, "ab"));
            CHECK(strbuf_putc(&s, 'c'));
            CHECK(strbuf_printf(&s, "%03d", i));
        }
        CHECK_INT(s.length, 6000);
        CHECK_INT(strlen(s.data), 6000);
        CHECK(memcmp(s.data + 6 * 437, "abc437", 6) == 0);
        CHECK(strbuf_append(&s, "x\0y", 3)); /* NUL is a byte like any other */
        CHECK_INT(s.length, 6003);
        size_t capacity = s.capacity;
        strbuf_clear(&s);
        CHECK_INT(s.length, 0);
        CHECK_INT(s.capacity, capacity);
        CHECK_STR(s.data, "");
        strbuf_release(&s);
        CHECK(!s.data && !s.capacity);
    }
    CASE("strbuf refuses impossible sizes and keeps its contents")
    {
        struct strbuf s = {0};
        CHECK(strbuf_puts(&s, "keep"));
        CHECK(!strbuf_reserve(&s, SIZE_MAX));
        CHECK(!strbuf_reserve(&s, SIZE_MAX - 4));
        CHECK_STR(s.data, "keep");
        strbuf_release(&s);
    }
    return tap_done();
}
