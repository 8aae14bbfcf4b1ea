/* Where the programs' own data files are looked for. */
#include "base/share.h"

#include "tap.h"

int main(void)
{
    char path[PATH_MAX];
    struct error e = {0};

    CASE("a folder that is given is taken as it is")
    {
        CHECK_INT(share_find("/given", "gpt2/vocab.bpe", "vocabulary", "name one", path, &e),
                  STATUS_OK);
        CHECK_STR(path, "/given/gpt2/vocab.bpe");
    }
    CASE("what is nowhere is an error with the places and the hint; an empty folder counts as none")
    {
        CHECK_INT(share_find("", "no/such", "thing", "name one", path, &e), STATUS_FAILED);
        CHECK_CONTAINS(e.message, "no thing at ");
        CHECK_CONTAINS(e.message, "/../share/no/such or ");
        CHECK_CONTAINS(e.message, "/../share/sdp-gpt2/no/such; name one");
    }
    return tap_done();
}
