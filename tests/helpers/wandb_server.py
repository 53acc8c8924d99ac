"""A W&B server that takes every run and file, as far as W&B's client asks: enough to see what `wandb sync` sends."""

from __future__ import annotations

import gzip
import http.server
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

BUCKET = {"id": "B", "name": "run", "displayName": "run", "project": {"name": "p", "entity": {"name": "e"}}}
PLACE = {"uploadHeaders": [], "uploadMultipartUrls": None, "storagePath": "x"}
VIEWER = {"id": "V", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}}
NO_MORE = {"endCursor": None, "hasNextPage": False}
PROJECT = {"id": "P", "name": "p", "entityName": "e", "createdAt": "2026-01-01", "isBenchmark": False, "user": None}
OTHER = {"serverInfo": {"cliVersionInfo": {}, "features": []}, "project": None, "model": None}


class Server(http.server.ThreadingHTTPServer):
    """Keeps what was uploaded, by the path that it was sent to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.uploads: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.viewer: dict[str, Any] = VIEWER  # whose key it is
        self.runs: list[dict[str, Any]] = []  # what runs were said to be
        self.history: list[dict[str, Any]] = []  # their points
        self.views: list[dict[str, Any]] = []  # reports
        self.url = f"http://127.0.0.1:{self.server_port}"

    def answer(self, operation: str, given: dict[str, Any]) -> dict[str, Any]:
        """To a GraphQL query."""
        self.asked.append(operation)
        answers = {
            "UpsertBucket": self._bucket,
            "CreateArtifact": self._artifact,
            "CreateArtifactManifest": self._manifest,
            "CreateArtifactFiles": self._artifact_files,
            "CommitArtifact": lambda _: {"commitArtifact": {"artifact": {"id": "A", "digest": "d"}}},
            "CreateRunFiles": self._run_files,
            "ProjectInternalId": lambda _: {"project": {"id": "P", "internalId": "P"}},
            "GetProjects": lambda _: {"models": {"pageInfo": NO_MORE, "edges": [{"node": PROJECT}]}},
            "upsertView": self._view,
        }
        return answers[operation](given) if operation in answers else {**OTHER, "viewer": self.viewer}

    def _bucket(self, given: dict[str, Any]) -> dict[str, Any]:
        self.runs.append(given)
        return {"upsertBucket": {"bucket": {**BUCKET, "name": given["name"]}, "inserted": True}}

    def _view(self, given: dict[str, Any]) -> dict[str, Any]:
        self.views.append(given)
        names = ("name", "displayName", "description", "type", "spec")
        view = {"id": "VIEW", "project": {"name": "p", "entityName": "e"}, **{name: given[name] for name in names}}
        return {"upsertView": {"view": {**view, "createdAt": None, "updatedAt": None}}}

    def _artifact(self, _: dict[str, Any]) -> dict[str, Any]:
        number, sequence = self.asked.count("CreateArtifact"), {"id": "S", "latestArtifact": None}
        artifact = {"id": f"artifact{number}", "state": "PENDING", "artifactSequence": sequence}
        return {"createArtifact": {"artifact": artifact}}

    def _manifest(self, _: dict[str, Any]) -> dict[str, Any]:
        file = {**PLACE, "id": "F", "uploadUrl": f"{self.url}/manifest"}
        return {"createArtifactManifest": {"artifactManifest": {"id": "M", "file": file}}}

    def _artifact_files(self, given: dict[str, Any]) -> dict[str, Any]:
        edges = [
            {"node": {**PLACE, "uploadUrl": f"{self.url}/artifact/{f['name']}", "artifact": {"id": f["artifactID"]}}}
            for f in given["input"]["artifactFiles"]
        ]
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _run_files(self, given: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/run/{name}"} for name in given["files"]]
        return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def _take(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        return gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body

    def _give(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        self.server.uploads[self.path] = self._take()
        self._give({})

    def do_POST(self) -> None:
        body = self._take()
        if "/graphql" not in self.path:  # a part of a run's history
            streamed = json.loads(body).get("files", {}).get("wandb-history.jsonl", {})
            self.server.history += [json.loads(line) for line in streamed.get("content", ())]
            self._give({"limits": {}})
            return
        asked = json.loads(body)
        name = re.match(r"\s*(?:query|mutation)\s+(\w+)", asked["query"])
        self._give({"data": self.server.answer(name.group(1) if name else "", asked.get("variables") or {})})

    do_GET = do_PUT


@contextmanager
def wandb_server() -> Generator[Server]:
    """A server on a port of this machine that goes at the end."""
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
