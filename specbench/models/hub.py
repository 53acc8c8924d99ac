"""Hub ids -> folders of the local hub cache. Nothing else of specbench reaches for the network, and this only if asked.

One request asks the hub for a model's list of files, so that an unreachable hub, an id that does not exist and a model
that asks for terms to be accepted are told apart at once. Small files come first, weights once these are checked.
"""

import errno
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants, errors
from transformers.utils import logging as transformers_logging

from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin, reason
from specbench.core.machine.progress import console, say
from specbench.models.weight_files import INDEX, SINGLE

ANSWER_SECONDS = 10.0  # how long the hub has to answer
_SMALL = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)
_NOT_CACHED = "It is not in the local hub cache: add pair.download=true to fetch it, or give a folder."


def cached(source: Origin) -> Path:
    """The folder of the local hub cache that holds a repository's newest known files. No network is tried.

    Raises:
        ConfigError: the cache holds no config.json of it, or what was asked for is no hub id.
    """
    try:
        config_path = huggingface_hub.try_to_load_from_cache(str(source.value), "config.json")
    except errors.HFValidationError as error:
        raise _explained(source, error) from error
    if not isinstance(config_path, str):
        raise source.wrong("not found", _NOT_CACHED)
    return Path(config_path).parent


def fetch(source: Origin) -> Path:
    """Fetches all files but the weights and returns the folder.

    If the hub does not answer, the files of the local cache are taken, with a warning.

    Raises:
        ConfigError: no such model, no safetensors, no access, or no hub that answers and nothing in the cache.
    """
    repo = str(source.value)
    try:
        names = _files(repo)
    except Exception as error:
        refused = _explained(source, error)
        if isinstance(error, errors.HFValidationError | errors.RepositoryNotFoundError):
            raise refused from error
        try:
            folder = cached(source)
        except ConfigError:
            raise refused from error
        say(f"{refused} Taken from the local hub cache.", style="yellow")
        return folder
    if SINGLE not in names and INDEX not in names:
        others = ", ".join(name for name in names if name.endswith((".bin", ".pth", ".pt", ".gguf"))) or "none"
        raise source.wrong(
            f"the model has neither {SINGLE} nor {INDEX} on the hub (weights: {others})",
            "Only safetensors are read, since pickles can run code: choose a model that has them.",
        )
    small = [name for name in names if name.endswith(_SMALL) and ("/" not in name or "chat_template" in name)]
    return _download(source, small, None)


def fetch_weights(source: Origin, folder: Path) -> None:
    """Fetches the weights into a folder that ``fetch`` gave. Raises ConfigError."""
    present = {path.name for path in folder.iterdir()}
    names = [SINGLE]
    if SINGLE not in present and INDEX in present:
        shard_of = source.json_object(folder / INDEX).get("weight_map")
        names = sorted({str(name) for name in shard_of.values()}) if isinstance(shard_of, dict) else []
    if not set(names) <= present:
        _download(source, names, folder.name)


@contextmanager
def offline() -> Generator[None]:
    """Forbids the hub's client to reach for the network, whichever library asks it to."""
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def without_progress_bars() -> Generator[None]:
    """Keeps the progress bars of transformers and of the hub's client off the console, and leaves both as they were."""
    transformers_bars = transformers_logging.is_progress_bar_enabled()
    hub_bars = not huggingface_hub.utils.are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()  # and the hub's
    try:
        yield
    finally:
        if transformers_bars:
            transformers_logging.enable_progress_bar()  # and the hub's
        hub = huggingface_hub.utils
        hub.enable_progress_bars() if hub_bars else hub.disable_progress_bars()


def _files(repo: str) -> list[str]:
    info = _within(ANSWER_SECONDS, lambda: huggingface_hub.HfApi().model_info(repo, timeout=ANSWER_SECONDS))
    return [file.rfilename for file in info.siblings or ()]


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """The call's result; TimeoutError after some seconds. (A client's own limit is one for each address of a host.)"""
    outcome: list[tuple[Any, Exception | None]] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} seconds")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def _download(source: Origin, names: Sequence[str], revision: str | None) -> Path:
    with nullcontext() if console.is_terminal else without_progress_bars():
        try:
            folder = huggingface_hub.snapshot_download(str(source.value), revision=revision, allow_patterns=list(names))
        except Exception as error:
            raise _explained(source, error) from error
    return Path(folder)


def _explained(source: Origin, error: Exception) -> ConfigError:
    """What the hub's client raised, in words that say what to do."""
    causes = list(_causes(error))
    for kind, problem, remedy in (
        (errors.HFValidationError, f"not a hub id ({reason(error)})", "Use owner/name, or give a folder."),
        (
            errors.OfflineModeIsEnabled,
            "HF_HUB_OFFLINE forbids to fetch it",
            "Unset HF_HUB_OFFLINE, or leave pair.download out.",
        ),
        (
            errors.GatedRepoError,
            "its owner asks for terms to be accepted, and this machine has no token of someone who did",
            f"Accept them on {constants.ENDPOINT}/{source.value}, then run `hf auth login` or set HF_TOKEN.",
        ),
        (
            errors.RepositoryNotFoundError,
            "the hub has no such model, or does not show it without a token",
            "Check the id; for a private model run `hf auth login` or set HF_TOKEN.",
        ),
    ):
        if any(isinstance(cause, kind) for cause in causes):
            return source.wrong(problem, remedy)
    for cause in causes:
        if isinstance(cause, errors.HfHubHTTPError):
            return source.wrong(*_refused(cause))
        if isinstance(cause, OSError) and cause.errno in _UNWRITABLE:
            problem = f"cannot be written to the hub cache, {constants.HF_HUB_CACHE} ({reason(cause)})"
            return source.wrong(problem, "Make room there, or set HF_HOME to another folder.")
    problem = f"the hub, {constants.ENDPOINT}, could not be reached ({type(error).__name__}: {reason(error)})"
    return source.wrong(problem, "Check the network, or fetch it elsewhere and give a folder.")


def _causes(error: BaseException | None) -> Iterator[Exception]:
    while isinstance(error, Exception):
        yield error
        error = error.__cause__


def _refused(error: errors.HfHubHTTPError) -> tuple[str, str]:
    status = error.response.status_code
    if status in (401, 403):
        return (
            f"the hub refuses this machine's token ({status})",
            "It was revoked or may not read this model: run `hf auth login`, or set or unset HF_TOKEN.",
        )
    return f"the hub answered with an error ({status}: {reason(error)})", "Try again later, or give a folder."
