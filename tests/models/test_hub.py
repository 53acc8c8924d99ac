"""Hub ids: nothing is fetched unless asked, and what keeps a model from being fetched is told apart at once."""

import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from specbench.core.errors import ConfigError, ModelError
from specbench.models import hub as our_hub
from specbench.models import load_pair
from specbench.models.weights import loading_report
from tests.helpers.checkpoints import HEAD, config, edit_json, tensors, tiny
from tests.helpers.stand_in_server import Asked, Raw, StandIn, running

REPO = "owner/model"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# What the real hub says, by what is wrong: status, and the headers that its client tells errors apart by.
REFUSALS: dict[str, tuple[int, dict[str, str]]] = {
    "absent": (401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}),
    "gated": (403, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}),
    "revoked": (401, {"X-Error-Message": "Invalid credentials in Authorization header"}),
    "busy": (503, {"X-Error-Message": "Service unavailable"}),
}


class FakeHub(StandIn):
    """A hub on this machine, which refuses as the real one does.

    Attributes:
        models: the folder of each repository.
        refused, files_refused: the repositories that it refuses, or whose files; a key of REFUSALS each.
        asked: the paths of all requests.
        waits: requests are answered once this is set.
    """

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


def point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path) -> None:
    """Makes an address the hub of this process; the library reads HF_ENDPOINT and HF_HOME only once."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("hub") / "whole")


@pytest.fixture
def hub(monkeypatch, tmp_path, whole) -> Iterator[FakeHub]:
    """Is the hub of this process, with an empty cache."""
    shutil.copytree(whole, tmp_path / "model")
    with running(FakeHub()) as hub:
        hub.models[REPO] = tmp_path / "model"
        point_at(monkeypatch, hub.url, tmp_path / "cache")
        yield hub
        hub.waits.set()


def load(download: bool):
    return load_pair(REPO, "embedded:draft", device="cpu", download=download)


def test_a_model_is_fetched_once_and_then_found_without_the_network(hub, monkeypatch):
    fetched = load(download=True)
    assert fetched.target.config.hidden_size == 32
    assert not constants.HF_HUB_OFFLINE
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("a host was looked up"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was used"))
    assert load(download=False).target.config.hidden_size == 32


def test_weights_come_last(hub):
    """A model of another vocabulary is refused before gigabytes of it are fetched."""
    edit_json("tokenizer_config.json", eos_token="<|pad|>")(hub.models[REPO])
    with pytest.raises(ModelError, match="different vocabularies"):
        load(download=True)
    assert any("tokenizer.json" in path for path in hub.asked)
    assert not any("resolve" in path and "safetensors" in path for path in hub.asked)
    with pytest.raises(ConfigError, match=f"pair.target={REPO}: no weights.*"):
        load(download=False)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (config(model_type="nope", auto_map={"AutoModelForCausalLM": "mine.Model"}), ".*mine.Model.*does not run"),
        (tensors(lambda weights: weights.update({HEAD: weights[HEAD].to(torch.int8)})), "1 weights are held as I8"),
    ],
    ids=["code", "weights"],
)
def test_broken_files_of_the_hub_are_refused_like_local_ones(hub, edit, says):
    edit(hub.models[REPO])
    with pytest.raises(ConfigError, match=f"pair.target={REPO}: {says}"):
        load(download=True)


def test_a_model_without_safetensors_is_not_fetched(hub):
    (hub.models[REPO] / "model.safetensors").rename(hub.models[REPO] / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="neither model.safetensors nor .*pytorch_model.bin.*choose a model"):
        load(download=True)
    assert not any("resolve" in path for path in hub.asked)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("absent", "the hub has no such model, .*Check the id; for a private model"),
        ("gated", "its owner asks for terms to be accepted, .*Accept them on http.*/owner/model, then"),
        ("revoked", r"the hub refuses this machine's token \(401\)\. It was revoked"),
        ("busy", r"the hub answered with an error \(503: .*Try again later"),
    ],
)
def test_refusals_are_told_apart(hub, reason, says):
    hub.refused[REPO] = reason
    with pytest.raises(ConfigError, match=f"pair.target={REPO}: {says}"):
        load(download=True)


def test_terms_may_keep_the_files_and_not_their_list(hub):
    hub.files_refused[REPO] = "gated"
    with pytest.raises(ConfigError, match="its owner asks for terms to be accepted"):
        load(download=True)


def test_an_unreachable_hub_is_asked_once(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    point_at(monkeypatch, f"http://127.0.0.1:{port}", tmp_path)
    tried, connect = [], socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda *arguments: (tried.append(arguments), connect(*arguments)))
    says = rf"the hub, http://127.0.0.1:{port}, could not be reached \(ConnectError: .*Check the network"
    with pytest.raises(ConfigError, match=says):
        load(download=True)
    assert len(tried) <= 2  # the client may ask one thing more of the hub before its first request


def test_a_hub_that_never_answers_is_given_up(hub, monkeypatch):
    monkeypatch.setattr(our_hub, "ANSWER_SECONDS", 0.2)
    hub.waits.clear()
    with pytest.raises(ConfigError, match="could not be reached.*Check the network"):
        load(download=True)


def test_the_cache_stands_in_for_a_hub_that_does_not_answer(hub, capfd):
    load(download=True)
    hub.refused[REPO] = "busy"
    assert load(download=True).target.config.hidden_size == 32
    assert "503" in (output := capfd.readouterr().err)
    assert "Taken from the local hub cache" in output


def test_what_forbids_to_fetch_is_named(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE forbids to fetch it. Unset"):
        load(download=True)
    assert constants.HF_HUB_OFFLINE


def test_a_host_with_many_addresses_does_not_get_more_time():
    """A client's limit is one for each address that a host has."""
    with pytest.raises(TimeoutError, match="no answer within"):
        our_hub._within(0.05, lambda: threading.Event().wait(5))
    assert our_hub._within(60.0, lambda: 7) == 7


@pytest.mark.parametrize("download", [False, True])
def test_libraries_may_not_fetch_while_they_load(hub, monkeypatch, download):
    """Such as kernels of a quantisation."""
    load(download=True)
    seen = []

    def noted(real):
        def call(*arguments, **more):
            seen.append(constants.HF_HUB_OFFLINE)
            return real(*arguments, **more)

        return call

    for loads in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):
        monkeypatch.setattr(loads, "from_pretrained", noted(loads.from_pretrained))
    load(download)
    assert len(seen) >= 6
    assert all(seen)


@pytest.mark.parametrize("download", [False, True])
def test_what_is_no_id_is_refused(hub, download):
    with pytest.raises(ConfigError, match=r"pair.target=-a/b c: not a hub id .*Use owner/name"):
        load_pair("-a/b c", "embedded:draft", device="cpu", download=download)


def test_nothing_is_looked_up_unless_asked(monkeypatch, tmp_path, whole):
    """Neither for a hub id, nor by a library while a folder is loaded."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *_, **__: pytest.fail("a host was looked up"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was used"))
    with pytest.raises(ConfigError, match=r"pair.target=nobody/nothing: not found.*pair.download=true"):
        load_pair("nobody/nothing", "embedded:draft", device="cpu")
    assert load_pair(str(whole), str(whole), device="cpu").vocab_size == 4096


@pytest.mark.parametrize("bars", [(False, False), (False, True), (True, False), (True, True)])
def test_progress_bars_are_left_as_they_were(bars):
    """Of transformers and of the hub's client."""

    def states() -> tuple[bool, bool]:
        return logging.is_progress_bar_enabled(), not huggingface_hub.utils.are_progress_bars_disabled()

    def switch(transformers_bars: bool, hub_bars: bool) -> None:
        (logging.enable_progress_bar if transformers_bars else logging.disable_progress_bar)()
        (utils.enable_progress_bars if hub_bars else utils.disable_progress_bars)()

    utils, before = huggingface_hub.utils, states()
    switch(*bars)
    try:
        with loading_report():
            assert states() == (False, False)
        assert states() == bars
    finally:
        switch(*before)
