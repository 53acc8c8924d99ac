"""A W&B server that takes every run and file, as far as W&B's client asks: enough to see what `wandb sync` sends."""

import json
import re
from contextlib import AbstractContextManager
from typing import Any

from tests.helpers.stand_in_server import Asked, StandIn, running

BUCKET = {"id": "B", "name": "run", "displayName": "run", "project": {"name": "p", "entity": {"name": "e"}}}
PLACE = {"uploadHeaders": [], "uploadMultipartUrls": None, "storagePath": "x"}
VIEWER = {"id": "V", "entity": "e", "username": "u", "flags": "{}", "teams": {"edges": []}}
NO_MORE = {"endCursor": None, "hasNextPage": False}
PROJECT = {"id": "P", "name": "p", "entityName": "e", "createdAt": "2026-01-01", "isBenchmark": False, "user": None}
OTHER = {"serverInfo": {"cliVersionInfo": {}, "features": []}, "project": None, "model": None}


class Server(StandIn):
    """Keeps what was uploaded, by the path that it was sent to."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.uploads: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.viewer: dict[str, Any] = VIEWER  # whose key it is
        self.runs: list[dict[str, Any]] = []  # what runs were said to be
        self.history: list[dict[str, Any]] = []  # their points
        self.views: list[dict[str, Any]] = []  # reports

    def _reply(self, http_request: Asked) -> dict[str, Any]:
        if http_request.method != "POST":
            self.uploads[http_request.path] = http_request.body
            return {}
        body = json.loads(http_request.body)
        if "/graphql" not in http_request.path:  # a part of a run's history
            streamed = body.get("files", {}).get("wandb-history.jsonl", {})
            self.history += [json.loads(line) for line in streamed.get("content", ())]
            return {"limits": {}}
        name = re.match(r"\s*(?:query|mutation)\s+(\w+)", body["query"])
        return {"data": self.answer(name.group(1) if name else "", body.get("variables") or {})}

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
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
        return answers[operation](variables) if operation in answers else {**OTHER, "viewer": self.viewer}

    def _bucket(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.runs.append(variables)
        return {"upsertBucket": {"bucket": {**BUCKET, "name": variables["name"]}, "inserted": True}}

    def _view(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.views.append(variables)
        names = ("name", "displayName", "description", "type", "spec")
        view = {"id": "VIEW", "project": {"name": "p", "entityName": "e"}, **{name: variables[name] for name in names}}
        return {"upsertView": {"view": {**view, "createdAt": None, "updatedAt": None}}}

    def _artifact(self, _: dict[str, Any]) -> dict[str, Any]:
        number, sequence = self.asked.count("CreateArtifact"), {"id": "S", "latestArtifact": None}
        artifact = {"id": f"artifact{number}", "state": "PENDING", "artifactSequence": sequence}
        return {"createArtifact": {"artifact": artifact}}

    def _manifest(self, _: dict[str, Any]) -> dict[str, Any]:
        file = {**PLACE, "id": "F", "uploadUrl": f"{self.url}/manifest"}
        return {"createArtifactManifest": {"artifactManifest": {"id": "M", "file": file}}}

    def _artifact_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        edges = [
            {"node": {**PLACE, "uploadUrl": f"{self.url}/artifact/{f['name']}", "artifact": {"id": f["artifactID"]}}}
            for f in variables["input"]["artifactFiles"]
        ]
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _run_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        files = [{"name": name, "uploadUrl": f"{self.url}/run/{name}"} for name in variables["files"]]
        return {"createRunFiles": {"runID": "B", "uploadHeaders": [], "files": files}}


def wandb_server() -> AbstractContextManager[Server]:
    """A server on a port of this machine that goes at the end."""
    return running(Server())
