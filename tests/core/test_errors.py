"""Errors as they reach another process: by joblib, Ray or multiprocessing, which carry them as pickles."""

import copy
import importlib
import pickle
import pkgutil
from pathlib import Path

import pytest

import specbench
from specbench.benchmark.check import WrongResultError
from specbench.core.errors import (
    ArgumentError,
    ConfigError,
    ModelError,
    NotInstalledError,
    OutageError,
    SpecbenchError,
    TrackingError,
)
from specbench.core.machine.disk import WriteError
from specbench.core.machine.ranks import RankError
from specbench.exactness.guard import VerifierFault
from specbench.runs.commandline import NotComposedError
from specbench.runs.state import JobRunning
from specbench.runs.sweep import JobsRefused
from specbench.sources.http import FaultError, StatusError

ERRORS = [
    SpecbenchError("half a character: \udcff"),
    ConfigError("gamma", -1, "below 0", "Use 0 or more."),
    NotInstalledError("verifier", "external/vllm", "vllm is missing", "Install it."),
    ModelError("pair.target=x: no output layer."),
    ArgumentError("streams: too narrow"),
    TrackingError("W&B did not end"),
    WriteError(Path("outputs"), "No space left on device"),
    JobRunning("process 1 on here runs it already"),
    NotComposedError("gamma=: cannot be composed"),
    JobsRefused("gamma=99: outside 0..64. Use 0 to 64."),
    RankError("rank 1: no room"),
    VerifierFault("chain", "it raised.", "seed 3"),
    WrongResultError("other tokens"),
    OutageError("source.url", "http://127.0.0.1:1", "cannot be reached", "Start the server."),
    StatusError("source.url", "http://127.0.0.1:1", "status 400", "See its log."),
    FaultError("source.url", "http://127.0.0.1:1", "status 500", "See its log."),
]


def subclasses(kind: type[SpecbenchError]) -> set[type[SpecbenchError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_is_itself_in_another_process(error):
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        got = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301
        assert type(got) is type(error)
        assert (str(got), got.args, vars(got)) == (str(error), error.args, vars(error))
    assert str(copy.copy(error)) == str(error)


def test_none_is_left_out():
    for module in pkgutil.walk_packages(specbench.__path__, "specbench."):
        if not module.name.endswith(("__main__", "wandb_process")):  # these run when they are imported
            importlib.import_module(module.name)
    assert {type(error) for error in ERRORS} == {
        kind for kind in subclasses(SpecbenchError) if kind.__module__.startswith("specbench.")
    }
