"""Shapes and dtypes of every annotated function in specbench are checked while the tests run."""

import functools
import gc
import importlib
import itertools
import os
import sys

# Memory of tensors that end stays with a worker: to give it back and to take it anew is 4% of the time.
os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32)}  # of the workers to come
if "PYTEST_XDIST_WORKER" in os.environ:  # workers that each use all cores wait for one another: ten times slower
    os.environ["OMP_NUM_THREADS"] = "1"

import json
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers import shape_checks
from tests.helpers.command_lines import NO_HOME, SmokeRun, clean_environment, once
from tests.helpers.without_network import without_network

if TYPE_CHECKING:
    from specbench.models import Pair


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Imports what is tested: not in the process that only hands tests to workers, which wait until it is ready."""
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        return
    early = sorted(name for name in sys.modules if name.startswith("specbench."))
    assert not early, (
        f"{early} have no checks of types: conftest.py files and plugins import specbench inside fixtures."
    )
    gc.disable()  # until all is imported, which stays: a quarter of the imports' time
    # Triton compiles or interprets the kernels from their source, which the hook's decorators would hide.
    from jaxtyping import install_import_hook

    kernels = ("attention", "attention_parts", "cutoff", "embedding", "product", "sample", "shape", "stamp", "think")
    for name in (*kernels, "uniforms", "verify"):
        importlib.import_module(f"specbench.kernels.{name}")

    shape_checks.check_sparingly()
    install_import_hook("specbench", "beartype.beartype")

    from tests.helpers import independent
    from tests.interpreted import interpreter

    independent.fill_lists_of_torch()
    independent.draw_the_same_examples()
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpreter.replace_once_a_launch()
        interpreter.leave_out_what_nobody_reads()
        interpreter.remember_dtypes()
        interpreter.remember_blocks()


def pytest_collection_finish() -> None:
    """What is imported stays: no more looking for garbage there."""
    gc.freeze()
    gc.enable()


LEFT_OUT = pytest.StashKey[int]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Counts the tests that are not run; pytest-xdist keeps silent about those of its workers."""
    for item in items:
        item.config.stash[LEFT_OUT] = item.config.stash.get(LEFT_OUT, 0) + 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker: tells the process that started it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Every worker has left out the same ones."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many were left out, and how they are run."""
    if count := terminalreporter.config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{count} tests deselected; `make test-all` and `make test-long` run them.")


# Files that take longest begin first, by their CPU time, so that no worker is left with one at the end.
LONGEST = (
    *("test_judge_checkpoint", "test_sweeps", "test_smoke", "test_analysis", "test_trials", "test_exactness"),
    *("test_exactness_cli", "test_judge", "test_cli", "test_compiled_cpu", "test_vocabularies", "test_transformers"),
    *("test_shaped_rows", "test_kernels", "test_latency_cli", "test_tracking_report"),
    *("test_tracking_errors", "test_jobs_in_turn", "test_own_rule", "test_packaging", "test_golden", "test_conf"),
    *("test_ways", "test_exactness_protocols", "test_causes", "test_ranking", "test_shard_layers"),
    *("test_cpu_model", "test_api_texts", "test_own_verifier", "test_fuzz", "test_exactness_statistics"),
    *("test_registered_rule", "test_hidden_states", "test_parallel_runs", "test_products", "test_linear_head"),
)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders the files that are given to workers, not the tests in one, and marks cases as ``cases`` says."""
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))
    left_out = ("thorough", "long")
    several = [item for item in items if item.get_closest_marker("cases")]
    several = [item for item in several if not any(map(item.get_closest_marker, left_out))]
    for _, group in itertools.groupby(several, key=lambda item: item.nodeid.partition("[")[0]):
        cases = list(group)
        short, *more = cases[0].get_closest_marker("cases").args
        count = more[0] if more else len(cases)
        whole = [i * len(cases) // count for i in range(count)]
        quick = [whole[i * count // short] for i in range(short)]
        for number, case in enumerate(cases):
            if number not in quick:
                case.add_marker(pytest.mark.thorough if number in whole else pytest.mark.long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Half a surrogate pair, which fuzzed files hold and libraries print, would end a worker of xdist."""
    report = yield
    report.sections = [(title, _encodable(text)) for title, text in report.sections]
    if report.longrepr is not None and _encodable(str(report.longrepr)) != str(report.longrepr):
        report.longrepr = _encodable(str(report.longrepr))
    return report


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether thorough tests are run too, so that what only they look at has to be made."""
    return any(item.get_closest_marker("thorough") for item in request.session.items)


@pytest.fixture(scope="session")
def pair() -> "Pair":
    """The embedded pair, in float32 on the CPU."""
    from specbench.models import load_pair

    return load_pair("embedded:target", "embedded:draft", device="cpu")


@pytest.fixture(scope="session")
def exact(pair: "Pair") -> "Pair":
    """A pair in float64, where shapes of matrix products move no token: the embedded draft, which a noisy copy drafts.

    A step takes a fifth of the time that one of the embedded pair takes.
    """
    from tests.helpers.cases import noisy_pair

    return noisy_pair(pair)


@pytest.fixture(scope="session")
def toy(pair: "Pair") -> "Pair":
    """Two tiny models, which decode in milliseconds."""
    from tests.helpers.toy import toy_pair

    return toy_pair(pair)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory) -> SmokeRun:
    """One whole sweep, for all tests that look at it: without a network, and without a home folder.

    Of the four jobs of conf/exp/smoke.yaml it has two, since a job and its W&B process take three seconds.
    """

    def run(folder: Path) -> None:
        (folder / "tmp").mkdir()
        environment = clean_environment(NO_HOME) | {"TMPDIR": str(folder / "tmp")}
        line = ("+exp=smoke", "gamma=3", "max_new_tokens=5", "sampler.truncate_prompt_tokens=8")
        command = [sys.executable, "-m", "specbench", *line]
        done = without_network(command, folder, environment, folder / "reached.txt")
        (folder / "ended.json").write_text(json.dumps([done.returncode, done.stdout + done.stderr]))

    folder = once(tmp_path_factory, "smoke", run)
    ended = json.loads((folder / "ended.json").read_text())
    reached = (folder / "reached.txt").read_text().splitlines()
    return SmokeRun(*ended, folder / "outputs/smoke/latest", reached, folder / "tmp")


@pytest.fixture
def few_enumerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small fixtures: locating a flawed verifier's thresholds takes half a second on each."""
    from specbench.exactness import suite
    from specbench.exactness.fixtures import small_fixtures

    kept = tuple(fixture for fixture in small_fixtures() if fixture.name in ("chain", "ties"))
    monkeypatch.setattr(suite, "small_fixtures", lambda: kept)


@pytest.fixture
def little_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds are looked for as in slow code: a tenth of the time, and the same on every machine."""
    from specbench.exactness.settings import RequestBudget

    monkeypatch.setattr(RequestBudget, "effort", 0.1)


@pytest.fixture
def few_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge simulates a fifth as often which bias it would have found, half of the time that it takes here."""
    from specbench.exactness.two_sample import power

    monkeypatch.setattr(power, "RUNS", 3)
    monkeypatch.setattr(power, "HALVINGS", 2)


@pytest.fixture(scope="module")
def small_buffers() -> Iterator[None]:
    """Of a CPU's timer, also in command lines that are forked: most of a short run's time went into filling them."""
    from specbench.benchmark import timer

    quick = functools.partialmethod(timer.DeviceTimer.copy_bandwidth, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(timer._FLUSH_BYTES, "cpu", 2**20)
        patch.setattr(timer.DeviceTimer, "copy_bandwidth", quick)
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the checks of shapes, which take most of the time of many small calls; others test with them."""
    from tests.helpers.shape_checks import without_shape_checks

    with without_shape_checks():
        yield


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of figures are blank: for tests that look at what stands beside them."""
    from matplotlib.figure import Figure

    from tests.helpers.blank_figures import save_blank

    monkeypatch.setattr(Figure, "savefig", save_blank)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.empty gives NaN, and integers that are no index."""
    import torch

    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 2**30 + 12345)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted programs cost milliseconds each, so that tiles are shared out among few."""
    from specbench.kernels import launch

    if launch.INTERPRETED:
        monkeypatch.setattr(launch, "TARGET_PROGRAMS", 16)
        monkeypatch.setattr(launch, "SCORE_CHUNK", 128)
        monkeypatch.setattr(launch, "EMIT_CHUNK", 128)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    shape_checks.new_test()
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # without the traceback that torch.manual_seed writes for every kind of device: a millisecond a test
        torch.default_generator.manual_seed(0)


@pytest.fixture
def reading_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widths as on a GPU, where the host reads no lengths and takes bounds."""
    from specbench.models import cached_model
    from specbench.sampling import batch

    for module in (cached_model, batch):
        monkeypatch.setattr(module, "known_max", lambda values, bound: bound)
