"""OpenAI's completions over HTTP, with token ids, for engines that have no server of their own or one without ids.

An engine has a ``name``, a ``version``, ``encode(text)``, and ``reply(body)``, which returns one choice of OpenAI's for
the body of a request, or raises ValueError for one that it does not take.
"""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol


class Engine(Protocol):
    name: str
    version: str

    def encode(self, text: str) -> list[int]: ...

    def reply(self, body: dict[str, Any]) -> dict[str, Any]: ...


def serve(engine: Engine, port: int) -> None:
    """Serves an engine on this machine alone, until the process ends."""
    handler = type("EngineHandler", (Handler,), {"engine": engine})
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()


class Handler(BaseHTTPRequestHandler):
    engine: Engine

    def do_GET(self):
        replies = {
            "/v1/models": {"data": [{"id": "target", "owned_by": self.engine.name}]},
            "/version": {"version": self.engine.version},
        }
        self.answer(200, replies[self.path]) if self.path in replies else self.answer(404, {"error": "no such page"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            if self.path == "/tokenize":
                self.answer(200, {"tokens": self.engine.encode(body["prompt"])})
            else:
                self.answer(200, {"choices": [self.engine.reply(body)]})
        except ValueError as error:
            self.answer(400, {"error": str(error)})
        except BaseException as error:  # a panic of an engine in Rust is no Exception; it starts itself anew
            self.answer(503, {"error": f"{type(error).__name__}: {error}"[:500]})

    def answer(self, status: int, content: dict[str, Any]):
        text = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args):
        pass
