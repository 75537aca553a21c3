"""Bytes on a socket, for requests that no library would send."""

import socket


class Raw:
    """A connection to the S3 port, from the address `source`."""

    def __init__(self, server, timeout_s=30, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", server.s3_port), timeout=timeout_s, source_address=(source, 0))
        self.host = server.host

    def send(self, data):
        self.socket.sendall(data)
        return self

    def request_head(self, method, path, headers):
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return self.send("\r\n".join(lines).encode())

    def receive(self):
        """Receives until the other side closes or an answer is complete; b"" when it closed without
        any."""
        data = b""
        while True:
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                return data
            data += more
            if not more or complete(data):
                return data

    def status(self):
        answer = self.receive()
        return int(answer.split(b" ", 2)[1]) if answer else None

    def closed(self):
        """Waits until the other side closes; returns the bytes received before."""
        data = b""
        while True:
            try:
                more = self.socket.recv(65536)
            except ConnectionResetError:
                return data
            if not more:
                return data
            data += more

    def reset(self):
        """Closes so that the other side gets a reset, as when a client's machine fails."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self.socket.close()

    def close(self):
        self.socket.close()


def complete(answer):
    """Whether an answer with a content length is complete."""
    head, separator, body = answer.partition(b"\r\n\r\n")
    if not separator:
        return False
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            return len(body) >= int(line.split(b":")[1])
    return False
