/* Signature Version 4 and HMAC-SHA256 against published examples: the S3 API reference
 * ("Authenticating Requests: Using the Authorization Header") and RFC 4231. The code belongs to one
 * tool, not to a library, so it is compiled in here. */
#include "sst2-fetch/digest.c"
#include "sst2-fetch/sigv4.c"
#include "tap.h"

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static const char *hmac(const char *key, size_t key_bytes, const char *data, char hex[65])
{
    uint8_t digest[32];
    hmac_sha256(key, key_bytes, data, strlen(data), digest);
    sha256_hex(digest, hex);
    return hex;
}

static bool signs(const char *method, const char *path, const char *query,
                  const struct sigv4_header *headers, size_t count, const char *payload,
                  const char *signature)
{
    struct sigv4_request q = {
        .method = method,
        .path = path,
        .query = query,
        .headers = headers,
        .header_count = count,
        .payload_sha256 = payload,
        .region = "us-east-1",
        .service = "s3",
        .access_key_id = "AKIAIOSFODNN7EXAMPLE",
        .secret_access_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    };
    struct strbuf out = {0};
    struct error e = {0};
    bool ok = sigv4_authorization(&q, "20130524T000000Z", &out, &e) == STATUS_OK &&
              strcmp(strstr(out.data, "Signature=") + 10, signature) == 0 &&
              strncmp(out.data,
                      "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"
                      "aws4_request, SignedHeaders=",
                      98) == 0;
    strbuf_release(&out);
    return ok;
}

int main(void)
{
    char hex[65];
    const char *host = "examplebucket.s3.amazonaws.com", *date = "20130524T000000Z";

    CASE("HMAC-SHA256, RFC 4231")
    {
        CHECK(strcmp(hmac("Jefe", 4, "what do ya want for nothing?", hex),
                     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843") == 0);
        char key[131];
        memset(key, 0xaa, sizeof(key));
        CHECK(strcmp(hmac(key, sizeof(key),
                          "Test Using Larger Than Block-Size Key - Hash Key First", hex),
                     "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54") == 0);
    }
    CASE("GET with a range")
    {
        const struct sigv4_header h[] = {{"host", host},
                                         {"range", "bytes=0-9"},
                                         {"x-amz-content-sha256", EMPTY},
                                         {"x-amz-date", date}};
        CHECK(signs("GET", "/test.txt", "", h, 4, EMPTY,
                    "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
    }
    CASE("PUT with an encoded key")
    {
        const char *payload = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
        const struct sigv4_header h[] = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                         {"host", host},
                                         {"x-amz-content-sha256", payload},
                                         {"x-amz-date", date},
                                         {"x-amz-storage-class", "REDUCED_REDUNDANCY"}};
        struct strbuf path = {0};
        CHECK(sigv4_encode(&path, "/test$file.text", true));
        CHECK(signs("PUT", path.data, "", h, 5, payload,
                    "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"));
        strbuf_release(&path);
    }
    CASE("a query without a value, and one with two")
    {
        const struct sigv4_header h[] = {
            {"host", host}, {"x-amz-content-sha256", EMPTY}, {"x-amz-date", date}};
        CHECK(signs("GET", "/", "lifecycle=", h, 3, EMPTY,
                    "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
        CHECK(signs("GET", "/", "max-keys=2&prefix=J", h, 3, EMPTY,
                    "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
    }
    CASE("another payload, path or header is another signature")
    {
        const struct sigv4_header h[] = {{"host", host},
                                         {"range", "bytes=0-8"},
                                         {"x-amz-content-sha256", EMPTY},
                                         {"x-amz-date", date}};
        CHECK(!signs("GET", "/test.txt", "", h, 4, EMPTY,
                     "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"));
    }
    CASE("percent-encoding")
    {
        struct strbuf out = {0};
        CHECK(sigv4_encode(&out, "a/b c~-._\xc3\xa9+", true));
        CHECK(strcmp(out.data, "a/b%20c~-._%C3%A9%2B") == 0);
        strbuf_clear(&out);
        CHECK(sigv4_encode(&out, "a/b", false));
        CHECK(strcmp(out.data, "a%2Fb") == 0);
        strbuf_release(&out);
    }
    CASE("timestamps")
    {
        char t[17];
        sigv4_timestamp(1369353600, t);
        CHECK(strcmp(t, date) == 0);
    }
    return tap_done();
}
