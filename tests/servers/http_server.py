#!/usr/bin/env python3
"""A web server on loopback that behaves well or badly, as the path says.

  http_server.py FOLDER PORTFILE LOGFILE [CERT KEY]

Writes its port to PORTFILE when it listens, and one line a request ("GET /path range=bytes=5-") to LOGFILE.
The first part of the path is the manner, the rest a file below FOLDER:

  /file/F         well: ETag, Range, If-Range, If-None-Match, If-Modified-Since
  /weak/F         the same with a weak ETag
  /drop/N/F       closes the connection after N bytes of each answer; ranges work
  /noetag/N/F     the same without any validator
  /ignore/N/F     drops once after N bytes, then answers ranges with the whole file
  /wrong/N/F      drops once after N bytes, then answers ranges with a range from byte 0
  /always206/F    answers everything with a range from byte 1
  /change/N/F     drops once after N bytes; then F+".new" is the current version
  /long/F         announces 1000 bytes more than there are
  /short/F        announces 1000 bytes less than there are
  /chunked/F      no Content-Length
  /busy/N/F       429 with Retry-After: 1 to the first N requests
  /down/N/F       503 to the first N requests
  /later/F        503 with Retry-After: 3600
  /stall/F        half of the file, then silence
  /gzip/F         Content-Encoding: gzip that nobody asked for
  /forbidden/F    403 with a web page           /missing/F   404 with a web page
  /page/F         200 with a web page
  /redirect/F     302 to /file/F                /loop/F      302 to itself
  /tohttp/F       302 to http://127.0.0.1:1/F   /auth/F      wants user "ann", password "s3cret"
  http://H/F      as a proxy: the file FOLDER/http:/H/F
  /hub/...rows    the rows API over FOLDER's train.tsv, dev.tsv, test.tsv; see hub()
"""
import base64
import collections
import functools
import hashlib
import http.server
import json
import os
import ssl
import sys
import threading
import time
import urllib.parse

FOLDER, PORTFILE, LOGFILE = sys.argv[1:4]
seen = collections.Counter()
lock = threading.Lock()
PAGE = b"<!DOCTYPE html><html><body>sentence\tlabel\nnot the data \t1\n</body></html>\n"


@functools.lru_cache
def split_lines(split):
    name = {"train": "train.tsv", "validation": "dev.tsv", "test": "test.tsv"}[split]
    with open(os.path.join(FOLDER, name), encoding="utf-8") as f:
        return f.read().split("\n")[1:-1]


def count(key):
    with lock:
        seen[key] += 1
        return seen[key]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def log_message(self, *args):
        pass

    def note(self):
        words = [self.command, self.path]
        for name in ("Range", "If-Range", "If-None-Match", "Authorization"):
            if self.headers.get(name):
                words.append(f"{name.lower()}={self.headers[name]}")
        with lock, open(LOGFILE, "a") as log:
            log.write(" ".join(words) + "\n")

    def answer(self, status, body, headers=(), length=None, stop=None):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body if stop is None else body[:stop])
        if stop is not None or length is not None:
            self.wfile.flush()
            self.close_connection = True

    def page(self, status):
        self.answer(status, PAGE, [("Content-Type", "text/html")])

    def send_file(self, data, etag=True, weak=False, stop=None, ranges=True, first=None, modified=None):
        tag = ('W/' if weak else '') + '"' + hashlib.md5(data).hexdigest() + '"'
        headers = [("Accept-Ranges", "bytes")]
        if etag:
            headers.append(("ETag", tag))
        if modified:
            headers.append(("Last-Modified", modified))
        if etag and self.headers.get("If-None-Match") == tag:
            return self.answer(304, b"", headers)
        wanted = self.headers.get("Range")
        condition = self.headers.get("If-Range")
        if wanted and ranges and (condition is None or condition == tag):
            start = int(wanted.split("=")[1].split("-")[0]) if first is None else first
            if start >= len(data):
                return self.answer(416, b"", [("Content-Range", f"bytes */{len(data)}")])
            headers.append(("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}"))
            return self.answer(206, data[start:], headers, stop=stop)
        self.answer(200, data, headers, stop=stop)

    def do_GET(self):
        self.note()
        url = urllib.parse.urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        manner, rest = parts[0], parts[1:]
        if url.netloc:  # asked as a proxy
            manner, rest = "file", ["http:", url.netloc] + parts
        if manner.startswith("hub"):
            return self.hub(manner, urllib.parse.parse_qs(url.query))
        number = int(rest.pop(0)) if rest and rest[0].isdigit() else 0
        name = os.path.join(FOLDER, *rest)
        if not os.path.isfile(name):
            return self.page(404)
        with open(name, "rb") as f:
            data = f.read()
        getattr(self, "go_" + manner)(data, number, name)

    def go_file(self, data, n, name):
        self.send_file(data)

    def go_weak(self, data, n, name):
        self.send_file(data, weak=True, stop=len(data) // 2 if count(self.path) == 1 else None)

    def go_drop(self, data, n, name):
        start = 0
        if self.headers.get("Range"):
            start = int(self.headers["Range"].split("=")[1].split("-")[0])
        self.send_file(data, stop=n if len(data) - start > n else None)

    def go_noetag(self, data, n, name):
        self.send_file(data, etag=False, stop=n)

    def go_ignore(self, data, n, name):
        self.send_file(data, ranges=False, stop=n if count(self.path) == 1 else None)

    def go_wrong(self, data, n, name):
        self.send_file(data, first=0, stop=n if count(self.path) == 1 else None)

    def go_always206(self, data, n, name):
        self.answer(206, data[1:], [("Content-Range", f"bytes 1-{len(data) - 1}/{len(data)}")])

    def go_change(self, data, n, name):
        if count(self.path) == 1:
            return self.send_file(data, stop=n)
        with open(name + ".new", "rb") as f:
            self.send_file(f.read())

    def go_long(self, data, n, name):
        self.answer(200, data, length=len(data) + 1000)

    def go_short(self, data, n, name):
        self.answer(200, data, length=len(data) - 1000)

    def go_chunked(self, data, n, name):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(0, len(data), 5000):
            piece = data[i:i + 5000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def go_busy(self, data, n, name):
        if count(self.path) <= n:
            return self.answer(429, PAGE, [("Retry-After", "1")])
        self.send_file(data)

    def go_down(self, data, n, name):
        if count(self.path) <= n:
            return self.page(503)
        self.send_file(data)

    def go_later(self, data, n, name):
        self.answer(503, PAGE, [("Retry-After", "3600")])

    def go_stall(self, data, n, name):
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:len(data) // 2])
        self.wfile.flush()
        time.sleep(8)
        self.close_connection = True

    def go_gzip(self, data, n, name):
        self.answer(200, data, [("Content-Encoding", "gzip")])

    def go_forbidden(self, data, n, name):
        self.page(403)

    def go_missing(self, data, n, name):
        self.page(404)

    def go_page(self, data, n, name):
        self.page(200)

    def go_redirect(self, data, n, name):
        self.answer(302, b"moved", [("Location", "/file/" + os.path.basename(name))])

    def go_loop(self, data, n, name):
        self.answer(302, b"moved", [("Location", self.path)])

    def go_tohttp(self, data, n, name):
        self.answer(302, b"moved", [("Location", "http://127.0.0.1:1/x")])

    def go_auth(self, data, n, name):
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"ann:s3cret").decode():
            return self.answer(401, PAGE, [("WWW-Authenticate", 'Basic realm="x"')])
        self.send_file(data)

    # The rows API. Manners: hub (well), hub-busy (429 to every fifth request), hub-total (the total changes
    # after page 3), hub-gap (a row number is wrong), hub-cut (a cell was cut), hub-less (a row is missing), hub-partial,
    # hub-die (500 from row 500 on, until there is a
    # file "healed"), hub-page (a web page), hub-nosuch (404 with an error in JSON).
    def hub(self, manner, query):
        q = {k: v[0] for k, v in query.items()}
        offset, length = int(q["offset"]), int(q["length"])
        lines = split_lines(q["split"])
        rows = []
        for i, line in enumerate(lines[offset:offset + min(length, 100)], offset):
            a, b = line.split("\t")
            row = {"idx": i, "sentence": b, "label": -1} if q["split"] == "test" else \
                  {"idx": i, "sentence": a, "label": int(b)}
            rows.append({"row_idx": i, "row": row, "truncated_cells": []})
        total = len(lines)
        status, headers = 200, [("Content-Type", "application/json")]
        if manner == "hub-busy" and count("busy") % 5 == 0:
            return self.answer(429, PAGE, [("Retry-After", "0")])
        if manner == "hub-die" and offset >= 500 and not os.path.exists(os.path.join(FOLDER, "healed")):
            return self.page(500)
        if manner == "hub-page":
            return self.page(200)
        if manner == "hub-nosuch":
            return self.answer(404, json.dumps({"error": "The dataset does not exist."}).encode(), headers)
        if manner == "hub-total" and offset >= 300:
            total += 1
        if manner == "hub-gap" and offset == 200:
            rows[7]["row_idx"] += 1
        if manner == "hub-cut" and offset == 200:
            rows[7]["truncated_cells"] = ["sentence"]
        if manner == "hub-less" and offset == 200:
            rows.pop()
        body = {"features": [], "rows": rows, "num_rows_total": total, "num_rows_per_page": 100,
                "partial": manner == "hub-partial"}
        time.sleep(0.002 * (offset // 100 % 3))  # answers overtake each other
        self.answer(status, json.dumps(body).encode(), headers)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        pass  # clients that go away are part of the tests


server = Server(("127.0.0.1", 0), Handler)
if len(sys.argv) > 4:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[4], sys.argv[5])
    server.socket = context.wrap_socket(server.socket, server_side=True)
with open(PORTFILE + ".tmp", "w") as f:
    f.write(str(server.server_address[1]))
os.rename(PORTFILE + ".tmp", PORTFILE)
server.serve_forever()
