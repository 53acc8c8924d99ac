"""A server in a thread of this process, which replies to each request by a function."""

import gzip
import http.server
import json
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar


@dataclass
class Asked:
    """A request: its method, path, headers and unpacked body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Raw:
    """A reply that is no JSON object with status 200; with ``pause``, byte by byte."""

    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    pause: float = 0.0  # seconds before each byte


class StandIn(http.server.ThreadingHTTPServer):
    """Replies to each request by a function of it, which returns an object for JSON, or Raw."""

    daemon_threads = True

    def __init__(self, reply: Callable[[Asked], Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: StandIn

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        reply = self.server.reply(Asked(self.command, self.path, dict(self.headers), body))
        if not isinstance(reply, Raw):
            reply = Raw(json.dumps(reply).encode())
        self.send_response(reply.status)
        for name, value in {"Content-Length": str(len(reply.content)), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        content = b"" if self.command == "HEAD" else reply.content
        try:
            for i in range(len(content) if reply.pause else 0):
                time.sleep(reply.pause)
                self.wfile.write(content[i : i + 1])
            if not reply.pause:
                self.wfile.write(content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has had enough

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


Server = TypeVar("Server", bound=StandIn)


@contextmanager
def running(server: Server) -> Generator[Server]:
    """Runs a server in a thread of its own until the end of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
