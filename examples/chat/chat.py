#!/usr/bin/env python3
"""The back end of the chat. It serves the page, issues tokens, and signs URLs for attachments. It
uses Python's library only.

Messages and attachments do not pass through it: the page sends them to the server's ports, with the
tokens and URLs that it gets here.
"""

import argparse
import base64
import hashlib
import hmac
import http.server
import json
import os
import pathlib
import re
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
BUCKET = "chat"
UPLOAD_BYTES_MAX = 16 << 20
FORM_BYTES_MAX = 16 << 10
TOKEN_S = 3600
URL_S = 300
KEY = re.compile(r"[0-9a-f]{32}/[\w.-]{1,80}", re.ASCII)
# Images that a browser may show. All other files are sent as bytes to save: no upload may act as a
# page.
IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".webp": "image/webp"}


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(user):
    """A connection token of Centrifugo's: a JWT (HS256) with the user's name and the expiry."""
    claims = {"sub": user, "exp": int(time.time()) + TOKEN_S}
    signed = ".".join(b64(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
    return f"{signed}.{b64(mac(options.secret, signed))}"


def user_of(text):
    """The user that a token names; None when the token is invalid or expired."""
    signed, _, signature = text.rpartition(".")
    if not hmac.compare_digest(b64(mac(options.secret, signed)).encode(), signature.encode()):
        return None
    payload = signed.partition(".")[2]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims["sub"] if claims["exp"] > time.time() else None


def s3_keys():
    """The keys in the environment, else the pair that the server made at its first start."""
    if "STEADFAST_ACCESS_KEY" in os.environ:
        return os.environ["STEADFAST_ACCESS_KEY"], os.environ["STEADFAST_SECRET_KEY"]
    made = json.loads((options.data / "credentials.json").read_text())
    return made["access_key"], made["secret_key"]


def presigned(method, path, **headers):
    """A URL with which its holder can send this one request, with exactly these headers, for some
    minutes (AWS signature version 4)."""
    access, secret = s3_keys()
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    headers = sorted({**headers, "host": urllib.parse.urlsplit(options.s3).netloc}.items())
    names = ";".join(name for name, _ in headers)
    query = urllib.parse.urlencode({  # in alphabetical order
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{access}/{scope}", "X-Amz-Date": now,
        "X-Amz-Expires": URL_S, "X-Amz-SignedHeaders": names})
    path = urllib.parse.quote(path)
    lines = "".join(f"{name}:{value}\n" for name, value in headers)
    request = "\n".join([method, path, query, lines, names, "UNSIGNED-PAYLOAD"])
    key = b"AWS4" + secret.encode()
    for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"):
        key = mac(key, part)
    return f"{options.s3}{path}?{query}&X-Amz-Signature={key.hex()}"


def make_bucket():
    request = urllib.request.Request(presigned("PUT", f"/{BUCKET}"), method="PUT", data=b"")
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 409:  # 409: the bucket exists
                raise


def place_for(name, size):
    """A URL to put an attachment of this size and type once, under a key that cannot be guessed,
    and the description of the attachment for a message."""
    make_bucket()
    name = re.sub(r"[^\w.-]+", "_", name, flags=re.ASCII)[-80:].lstrip(".") or "file"
    kind = IMAGES.get(os.path.splitext(name)[1].lower(), "application/octet-stream")
    key = f"{secrets.token_hex(16)}/{name}"
    url = presigned("PUT", f"/{BUCKET}/{key}", **{"content-length": size, "content-type": kind})
    return {"url": url, "type": kind, "file": {"key": key, "name": name, "image": kind in IMAGES.values()}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self):
        path = self.path.partition("?")[0]
        if path == "/":
            page = (HERE / "index.html").read_text()
            if options.sdk:
                page = re.sub(r'src="https://[^"]*/centrifuge.js"', 'src="/centrifuge.js"', page)
            self.answer(200, page, "text/html; charset=utf-8")
        elif path == "/centrifuge.js" and options.sdk:
            self.answer(200, options.sdk.read_bytes(), "text/javascript")
        elif path.startswith("/file/") and KEY.fullmatch(key := path[len("/file/"):]):
            # S3 itself sends the bytes. Your back end decides who may read them; in this chat,
            # knowing the key suffices.
            try:
                where = presigned("GET", f"/{BUCKET}/{key}")
            except OSError as error:
                return self.answer(502, f"The S3 keys cannot be read: {error}\n")
            self.answer(307, "", headers={"Location": where, "Cache-Control": f"private, max-age={URL_S // 2}"})
        else:
            self.answer(404, "There is no such page.\n")

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > FORM_BYTES_MAX:
            self.close_connection = True
            return self.answer(413, "This is too large.\n")
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(length)).decode(errors="replace")))
        if self.path == "/token":
            # Your own login belongs here: this example accepts any name.
            name = " ".join(form.get("name", "").split())[:30]
            if not name:
                return self.answer(400, "The name is missing.\n")
            return self.answer(200, json.dumps({"name": name, "token": token(name), "live": options.live}), "application/json")
        if self.path == "/upload":
            if not user_of(self.headers.get("Authorization", "").removeprefix("Bearer ")):
                return self.answer(401, "The token is missing or expired: join again.\n")
            size = form.get("size", "")
            if not size.isdecimal() or int(size) > UPLOAD_BYTES_MAX:
                return self.answer(413, f"An attachment may have at most {UPLOAD_BYTES_MAX >> 20} MiB.\n")
            try:
                return self.answer(200, json.dumps(place_for(form.get("name", ""), int(size))), "application/json")
            except OSError as error:
                return self.answer(502, f"The attachment cannot be stored: {error}\n")
        return self.answer(404, "There is no such page.\n")

    def answer(self, status, body, kind="text/plain; charset=utf-8", headers=None):
        body = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(body), "X-Content-Type-Options": "nosniff",
                            **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def configured(name, file):
    found = re.search(rf'^{name} = "(.*)"$', file.read_text(), re.M)
    return found[1] if found else exit(f"{file} has no {name}")


parser = argparse.ArgumentParser(description="The back end of the chat.")
parser.add_argument("--port", type=int, default=8080, help="port on 127.0.0.1 for browsers (default: %(default)s)")
parser.add_argument("--data", type=pathlib.Path, default="data", help="the server's data directory, for its S3 keys (default: %(default)s)")
parser.add_argument("--config", type=pathlib.Path, default=HERE / "steadfast.toml", help="the server's configuration, for its secret")
parser.add_argument("--s3", default="http://127.0.0.1:9000", help="the S3 port, as browsers reach it (default: %(default)s)")
parser.add_argument("--live", default="ws://127.0.0.1:8000/connection/websocket", help="the live port, as browsers reach it (default: %(default)s)")
parser.add_argument("--sdk", type=pathlib.Path, help="a copy of centrifuge.js to serve, for browsers without the internet")

if __name__ == "__main__":
    options = parser.parse_args()
    options.secret = configured("hmac_secret_key", options.config).encode()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", options.port), Handler)
    print(f"chat: http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
