"""An HTTP origin for edge buckets: it makes its objects up, counts what it sends, and fails as a test
wants."""

import hashlib
import http.server
import random
import socket
import threading
import time
import urllib.parse

# The period of an object's bytes: no segment begins like another.
PERIOD = 1_000_003
# Bytes sent at a time.
PIECE = 1 << 16


class Content:
    """The bytes of one version of an object, by their place."""

    def __init__(self, size, seed=0, etag=None, **headers):
        self.size, self.headers = size, headers
        self.etag = f'"v{seed}"' if etag is None else etag
        pattern = random.Random(seed).randbytes(PERIOD)
        self._pattern = pattern * 3

    def read(self, start, end):
        out = bytearray()
        while start < end:
            offset = start % PERIOD
            out += self._pattern[offset:offset + min(end - start, 2 * PERIOD)]
            start += min(end - start, 2 * PERIOD)
        return bytes(out)

    def digest(self):
        digest = hashlib.sha256()
        for start in range(0, self.size, 1 << 20):
            digest.update(self.read(start, min(start + (1 << 20), self.size)))
        return digest.hexdigest()


class Given(Content):
    """Bytes that a test has."""

    def __init__(self, data, etag, **headers):
        self.data, self.size, self.etag, self.headers = data, len(data), etag, headers

    def read(self, start, end):
        return self.data[start:end]


class Origin:
    """`fault(request)` may return a status, `"hang"`, `"truncate"`, `"redirect"` or a function that
    answers itself; `find` gives the object of a key; `bytes_s` limits the rate of all answers together."""

    def __init__(self):
        self.objects, self.requests, self.sent, self.bytes_s = {}, [], 0, None
        self.fault, self.find = lambda request: None, lambda key: self.objects.get(key)
        self._lock, self._due = threading.Lock(), 0.0
        origin = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def do_GET(self):
                origin.answer(self)

            def do_HEAD(self):
                origin.answer(self)

            def log_message(self, *_):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 256

            def handle_error(self, *_):
                """The edge may close a connection at any time."""

        self.server = Listener(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def setting(self, bucket="media", **keys):
        """The `edge.buckets` setting for this origin."""
        keys = {"bucket": bucket, "origin": f"{self.url}/vod", "allow_private": True, **keys}
        text = [f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}".replace("'", '"')
                for name, value in keys.items()]
        return f"[{{ {', '.join(text)} }}]"

    def put(self, key, *args, **headers):
        self.objects[key] = content = Content(*args, **headers)
        return content

    def answer(self, request):
        with self._lock:
            self.requests.append((request.command, request.path, dict(request.headers)))
        fault = self.fault(request)
        content = self.find(urllib.parse.unquote(request.path.removeprefix("/vod/")))
        if callable(fault):
            return fault(request)
        if fault == "hang":
            time.sleep(3600)
        if content is None or isinstance(fault, int):
            return self.finish(request, fault or 404, {"Content-Length": "0"})
        if fault == "redirect":
            return self.finish(request, 302, {"Location": f"{self.url}/vod/elsewhere", "Content-Length": "0"})
        headers = {"Accept-Ranges": "bytes", **({"ETag": content.etag} if content.etag else {}), **content.headers}
        if content.etag and request.headers.get("If-None-Match") == content.etag:
            return self.finish(request, 304, headers)
        start, end, status = 0, content.size, 200
        if_match, span = request.headers.get("If-Match"), request.headers.get("Range", "")
        if if_match not in (None, content.etag):
            return self.finish(request, 412, {"Content-Length": "0"})
        if span.startswith("bytes=") and not span.startswith("bytes=-"):
            first, last = span[6:].split("-")
            start, end, status = int(first), min(int(last or content.size) + 1, content.size), 206
            if start >= end:
                return self.finish(request, 416, {"Content-Range": f"bytes */{content.size}", "Content-Length": "0"})
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{content.size}"
        headers["Content-Length"] = str(end - start)
        self.finish(request, status, headers)
        if request.command == "HEAD":
            return None
        if fault == "truncate":
            end = start + (end - start) // 2
        for at in range(start, end, PIECE):
            piece = content.read(at, min(at + PIECE, end))
            self._pace(len(piece))
            # A piece is counted first: a client that has received it finds it counted.
            with self._lock:
                self.sent += len(piece)
            request.wfile.write(piece)
        if fault == "truncate":
            request.close_connection = True
        return None

    def _pace(self, count):
        if self.bytes_s:
            with self._lock:
                self._due = max(self._due, time.monotonic()) + count / self.bytes_s
                due = self._due
            time.sleep(max(0.0, due - time.monotonic()))

    @staticmethod
    def finish(request, status, headers):
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
