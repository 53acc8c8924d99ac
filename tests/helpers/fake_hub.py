"""A hub on this machine: serves the folders that it is given, and refuses as the real one does."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from tests.helpers.stand_in_server import Asked, Raw, StandIn, running

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# What the real hub says, by what is wrong: status, and the headers that its client tells errors apart by.
REFUSALS: dict[str, tuple[int, dict[str, str]]] = {
    "absent": (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "gated": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}),
    "revoked": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "busy": (503, {"X-Error-Message": "Service unavailable"}),
}


class FakeHub(StandIn):
    """Attributes: models (folders by repository), refused (a key of REFUSALS by repository), asked (paths)."""

    def __init__(self) -> None:
        super().__init__(self._reply)
        self.models: dict[str, Path] = {}
        self.refused: dict[str, str] = {}
        self.files_refused: dict[str, str] = {}
        self.asked: list[str] = []
        self.waits = threading.Event()
        self.waits.set()

    def _reply(self, http_request: Asked) -> Any:
        self.asked.append(http_request.path)
        self.waits.wait(30)
        path = http_request.path
        parts = path.partition("?")[0].strip("/").split("/")
        listing = parts[:2] == ["api", "models"]
        repo = "/".join(parts[2:4] if listing else parts[:2])
        reason = self.refused.get(repo) or ("" if listing else self.files_refused.get(repo, ""))
        if repo not in self.models and not reason:
            reason = "absent"
        if reason:
            status, headers = REFUSALS[reason]
            return Raw(status=status, headers=headers)
        folder = self.models[repo]
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if listing and "tree" in parts:
            return [{"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0"} for file in files]
        if listing:
            return {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": file.name} for file in files]}
        name = parts[-1]
        return Raw((folder / name).read_bytes(), headers={"X-Repo-Commit": COMMIT, "ETag": f'"{repo}/{name}"'})


@contextmanager
def fake_hub(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FakeHub]:
    """Runs one, and makes it the hub of this process, with an empty cache."""
    with running(FakeHub()) as hub:
        point_at(monkeypatch, hub.url, cache)
        yield hub
        hub.waits.set()


def point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """Makes an address the hub of this process; the library reads HF_ENDPOINT and HF_HOME only once."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
