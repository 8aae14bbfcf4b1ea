#!/usr/bin/env python3
"""A small S3 on loopback that verifies Signature Version 4 by the specification, with its own code.

  s3_server.py FOLDER PORTFILE LOGFILE

Objects are the files FOLDER/BUCKET/KEY. The one account is AKIDEXAMPLE with the secret below and, when a session
token is sent, the token "the+token/=="; region eu-test-1. /creds hands it out to containers that send "Authorization:
let me in", /latest/... to instances, as their metadata service does. Bucket "public" needs no signature; "elsewhere" answers 301 with
another region; keys that contain "flaky" answer 503 to the first request of each kind; uploads to a key that
contains "refuse" fail at the second part.
"""
import collections
import hashlib
import hmac
import html
import http.server
import json
import os
import re
import sys
import threading
import urllib.parse

FOLDER, PORTFILE, LOGFILE = sys.argv[1:4]
KEY, SECRET, TOKEN, REGION = "AKIDEXAMPLE", "wJalr/XUtn+FEMI", "the+token/==", "eu-test-1"
uploads, seen, lock = {}, collections.Counter(), threading.Lock()


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def check_signature(h, body):
    """An error code, or None."""
    found = re.fullmatch(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, "
                         r"SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})",
                         h.headers.get("Authorization", ""))
    if not found:
        return "AccessDenied"
    key, date, region, names, signature = found.groups()
    if key != KEY:
        return "InvalidAccessKeyId"
    if region != REGION:
        return "AuthorizationHeaderMalformed"
    names = names.split(";")
    must = {"host"} | {k.lower() for k in h.headers if k.lower().startswith("x-amz-")}
    if names != sorted(names) or not must <= set(names):
        return "SignatureDoesNotMatch"
    if h.headers.get("x-amz-security-token", TOKEN) != TOKEN:
        return "InvalidToken"
    digest = hashlib.sha256(body).hexdigest()
    if h.headers["x-amz-content-sha256"] != digest:
        return "XAmzContentSHA256Mismatch"
    url = urllib.parse.urlsplit(h.path)
    path = urllib.parse.quote(urllib.parse.unquote(url.path), safe="/-._~")
    pairs = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
    query = "&".join(f"{urllib.parse.quote(a, safe='-._~')}={urllib.parse.quote(b, safe='-._~')}"
                     for a, b in sorted(pairs))
    canonical = "\n".join([h.command, path, query,
                           "".join(f"{n}:{' '.join(h.headers[n].split())}\n" for n in names),
                           ";".join(names), digest])
    stamp = h.headers["x-amz-date"]
    scope = f"{date}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope,
                      hashlib.sha256(canonical.encode()).hexdigest()])
    k = ("AWS4" + SECRET).encode()
    for step in (date, region, "s3", "aws4_request"):
        k = sign(k, step)
    good = hmac.compare_digest(sign(k, text).hex(), signature) and stamp.startswith(date)
    return None if good else "SignatureDoesNotMatch"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status, code, headers=()):
        self.answer(status, f"<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>said the server"
                            f"</Message><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>".encode(),
                    headers)

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        self.name = urllib.parse.unquote(url.path).lstrip("/")
        bucket = self.name.split("/")[0]
        if bucket in ("creds", "latest"):
            return self.hand_out()
        with lock, open(LOGFILE, "a") as log:
            log.write(f"{self.command} {self.path} {self.headers.get('Range', '')} {len(body)}\n")
        if bucket == "elsewhere":
            return self.refuse(301, "PermanentRedirect", [("x-amz-bucket-region", "mars-north-1")])
        if bucket != "public" or self.command != "GET":
            error = check_signature(self, body)
            if error:
                return self.refuse(403, error)
        if "flaky" in self.name:
            with lock:
                seen[self.command, self.path] += 1
            if seen[self.command, self.path] == 1:
                return self.refuse(503, "SlowDown")
        getattr(self, "on_" + self.command)(os.path.join(FOLDER, self.name), body)

    def hand_out(self):
        keys = json.dumps({"AccessKeyId": KEY, "SecretAccessKey": SECRET, "Token": TOKEN}).encode()
        role = "latest/meta-data/iam/security-credentials/"
        if self.name == "creds":
            good = self.headers.get("Authorization") == "let me in"
            return self.answer(200, keys) if good else self.answer(403, b"{}")
        if self.name == "latest/api/token" and self.command == "PUT":
            good = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            return self.answer(200, b"t0") if good else self.answer(400)
        if self.headers.get("X-aws-ec2-metadata-token") != "t0":
            return self.answer(401)
        answers = {role: b"trainer", role + "trainer": keys}
        self.answer(200 if self.name in answers else 404, answers.get(self.name, b""))

    do_GET = do_PUT = do_POST = do_DELETE = handle_any

    def on_list(self, path):
        prefix = self.query["prefix"]
        names = sorted(n for n in os.listdir(path + "/" + prefix) if os.path.isfile(f"{path}/{prefix}{n}"))
        keys = "".join(f"<Contents><Key>{html.escape(prefix + n)}</Key></Contents>" for n in names)
        cut = "true" if "many" in prefix else "false"
        self.answer(200, f"<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{cut}</IsTruncated>{keys}"
                         f"</ListBucketResult>".encode())

    def on_GET(self, path, body):
        if self.query.get("list-type") == "2":
            return self.on_list(path.rstrip("/"))
        if not os.path.isfile(path):
            return self.refuse(404, "NoSuchKey")
        with open(path, "rb") as f:
            data = f.read()
        tag = '"' + hashlib.md5(data).hexdigest() + '"'
        if self.headers.get("If-None-Match") == tag:
            return self.answer(304, b"", [("ETag", tag)])
        wanted = self.headers.get("Range")
        if wanted and self.headers.get("If-Range", tag) == tag:
            first = int(wanted.split("=")[1].split("-")[0])
            return self.answer(206, data[first:], [
                ("ETag", tag), ("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")])
        if "cut" in self.name and not wanted:  # the connection breaks in the middle
            self.send_response(200)
            self.send_header("ETag", tag)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:len(data) // 2])
            self.close_connection = True
            return
        self.answer(200, data, [("ETag", tag)])

    def store(self, path, data):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(data)

    def on_PUT(self, path, body):
        tag = '"' + hashlib.md5(body).hexdigest() + '"'
        if "uploadId" in self.query:
            if "refuse" in path and self.query["partNumber"] == "2":
                return self.refuse(403, "AccessDenied")
            with lock:
                uploads[self.query["uploadId"]][int(self.query["partNumber"])] = (tag, body)
        else:
            self.store(path, body)
        self.answer(200, b"", [("ETag", tag)])

    def on_POST(self, path, body):
        if "uploads" in self.query:
            with lock:
                name = f"id {len(uploads)}/+="  # needs encoding
                uploads[name] = {}
            return self.answer(200, f"<R><UploadId>{name}</UploadId></R>".encode())
        with lock:
            parts = uploads.pop(self.query["uploadId"])
        listed = re.findall(r"<PartNumber>(\d+)</PartNumber><ETag>([^<]+)</ETag>", body.decode())
        if [(int(n), t) for n, t in listed] != sorted((n, t) for n, (t, _) in parts.items()):
            return self.refuse(400, "InvalidPart")
        if "late" in path:  # S3 can fail after it has answered 200
            return self.refuse(200, "InternalError")
        self.store(path, b"".join(parts[n][1] for n in sorted(parts)))
        self.answer(200, b"<CompleteMultipartUploadResult/>")

    def on_DELETE(self, path, body):
        with lock:
            uploads.pop(self.query["uploadId"])
        self.answer(204)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Handler)
with open(PORTFILE + ".tmp", "w") as f:
    f.write(str(server.server_address[1]))
os.rename(PORTFILE + ".tmp", PORTFILE)
server.serve_forever()
