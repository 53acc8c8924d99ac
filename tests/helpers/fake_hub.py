"""A hub on this machine: serves the folders that it is given, and refuses as the real one does."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# What the real hub says, by what is wrong: status, and the headers that its client tells errors apart by.
REFUSALS: dict[str, tuple[int, dict[str, str]]] = {
    "absent": (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "gated": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}),
    "revoked": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "busy": (503, {"X-Error-Message": "Service unavailable"}),
}


class FakeHub:
    """Attributes: models (folders by repository), refused (a key of REFUSALS by repository), asked (paths)."""

    def __init__(self) -> None:
        self.models: dict[str, Path] = {}
        self.refused: dict[str, str] = {}
        self.files_refused: dict[str, str] = {}
        self.asked: list[str] = []
        self.waits = threading.Event()
        self.waits.set()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content for a path."""
        parts = path.partition("?")[0].strip("/").split("/")
        listing = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if listing else parts[:2])
        reason = self.refused.get(repo) or ("" if listing else self.files_refused.get(repo, ""))
        if repo not in self.models and not reason:
            reason = "absent"
        if reason:
            return *REFUSALS[reason], b""
        folder = self.models[repo]
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if listing and "tree" in parts:
            return (
                200,
                {},
                _json([{"type": "file", "path": f.name, "size": f.stat().st_size, "oid": "0"} for f in files]),
            )
        if listing:
            return 200, {}, _json({"id": repo, "sha": COMMIT, "siblings": [{"rfilename": f.name} for f in files]})
        name = parts[-1]
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{repo}/{name}"'}, (folder / name).read_bytes()


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()


@contextmanager
def fake_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """Runs one, and makes it the hub of this process, with an empty cache."""
    hub = FakeHub()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            hub.waits.wait(30)
            status, headers, content = hub.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    point_at(monkeypatch, f"http://127.0.0.1:{server.server_port}", cache)
    try:
        yield hub
    finally:
        hub.waits.set()
        server.shutdown()
        server.server_close()


def point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """Makes an address the hub of this process; the library reads HF_ENDPOINT and HF_HOME only once."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
