"""A proxy in front of an S3 endpoint that spoils some of the answers."""

import http.client
import http.server
import itertools
import threading

# What happens to a request, in turn.
FAULTS = ["lost", "dropped", "twice", "409", "503", "500 afterwards", "truncated"]


class FaultyProxy:
    """Passes requests to an endpoint on this machine. It spoils every `nth`."""

    def __init__(self, address, port, nth=10):
        self.counts, self.number, self.lock = dict.fromkeys(FAULTS, 0), itertools.count(1), threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self, body):
                upstream = http.client.HTTPConnection(address, port, timeout=60)
                try:
                    upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                    for name, value in self.headers.items():
                        upstream.putheader(name, value)
                    upstream.endheaders(body)
                    answer = upstream.getresponse()
                    return answer.status, answer.getheaders(), answer.read()
                finally:
                    upstream.close()

            def answer(self, status, headers, body, sent=None):
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = len(body)
                if self.command == "HEAD":
                    length = next((value for name, value in headers if name.lower() == "content-length"), 0)
                self.send_header("content-length", str(length))
                self.end_headers()
                self.wfile.write(body[:sent])

            def do_any(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                fault = proxy.next_fault(nth)
                if fault in ("409", "503"):
                    code = {"409": "ConditionalRequestConflict", "503": "SlowDown"}[fault]
                    return self.answer(int(fault), [], f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())
                if fault == "dropped":
                    self.close_connection = True
                    return None
                status, headers, found = self.pass_on(body)
                if fault == "twice":
                    status, headers, found = self.pass_on(body)
                if fault == "500 afterwards":
                    return self.answer(500, [], b"<Error><Code>InternalError</Code><Message>no</Message></Error>")
                if fault == "lost":
                    self.close_connection = True
                    return None
                if fault == "truncated" and found:
                    self.close_connection = True
                    return self.answer(status, headers, found, len(found) // 2)
                return self.answer(status, headers, found)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_any

            def log_message(self, *_):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                # Clients that give up.
                pass

        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.port = self.listener.server_address[1]
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def next_fault(self, nth):
        with self.lock:
            number = next(self.number)
            if number % nth:
                return None
            fault = FAULTS[number // nth % len(FAULTS)]
            self.counts[fault] += 1
            return fault

    def close(self):
        self.listener.shutdown()
        self.listener.server_close()
