"""Runs many command lines in one process, because importing torch and transformers takes five seconds.

    python -m tests.helpers.command_lines CASES OUT

CASES is a JSON list of {"arguments", "folder", "may_load"}; OUT gets a list of Ended. The process is never that of the
tests, whose checks of types would change errors: it is forked from it without the checks (``apart``), or a new one
where a test looks at what is imported.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

from tests.helpers.processes import ROOT, apart

if TYPE_CHECKING:
    import pandas as pd

NO_HOME = Path("/dev/null/home")  # which no user can make, root included
HEAVY = ("transformers", "wandb", "torch._dynamo", "torch._inductor")  # half a second or more to import, each


@dataclass(frozen=True)
class Ended:
    """How a command line ended: exit status, negative for the signal that killed it, and everything it printed.

    ``loaded`` says whether ``run_once`` saw it load a model. ``heavy`` are those of HEAVY that had been imported by
    then, by this or an earlier one of its process.
    """

    status: int
    text: str
    loaded: bool = False
    heavy: list[str] = field(default_factory=list)

    def check(self, status: int, *says: str) -> Ended:
        """Asserts how it ended and what it printed, without a traceback."""
        assert self.status == status, self.text
        for words in says:
            assert words in self.text, f"{words!r} is not in:\n{self.text}"
        assert "Traceback" not in self.text, self.text
        return self


@dataclass(frozen=True)
class SmokeRun:
    """``python -m specbench +exp=smoke``, once it ended: its status, what it printed, and the sweep's folder.

    ``reached`` has a line for each attempt to reach a host, ``temporary`` is the folder that it had for its own files.
    """

    status: int
    text: str
    sweep: Path
    reached: list[str]
    temporary: Path


def clean_environment(home: Path, hide_gpus: bool = False) -> dict[str, str]:
    """The environment of a user without a W&B key, whose home is ``home``; this checkout is imported.

    One thread: several processes that each spin on all cores take minutes for seconds of work. Processes that are to
    be forked with everything imported need hidden GPUs: CUDA does not live on in the children.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("WANDB", "HYDRA", "XDG"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    ours = {"HOME": str(home), "NETRC": str(home / "netrc"), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return {**kept, **ours, **({"CUDA_VISIBLE_DEVICES": ""} if hide_gpus else {})}


def new_process(folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs Python with these arguments in ``folder``, which is its home too, to an end with this exit status."""
    command, environment = [sys.executable, *arguments], clean_environment(folder)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that ``make`` filled, once for all pytest-xdist workers: the first makes it, the others wait.

    (xdist 3.8's own grouping, --dist loadgroup, has no effect under pytest 9.2.)
    """
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


def untracked(arguments: Sequence[str]) -> Sequence[str]:
    """Without W&B, whose process takes seconds, unless a line is about it."""
    about = any("tracking" in argument or argument.startswith("-") for argument in arguments)
    return arguments if about else (*arguments, "tracking.mode=disabled")


@dataclass(frozen=True)
class Ran:
    """A command line that ``run_once`` ran: how it ended, and the folder that it ran in.

    specbench is imported where it is needed: this module is read before the checks of shapes are installed.
    """

    ended: Ended
    folder: Path

    @property
    def sweep(self) -> Path:
        return next(self.folder.glob("outputs/*/latest"))

    @property
    def rows(self) -> pd.DataFrame:
        from specbench.metrics.results import read_results

        return read_results(self.sweep)

    @property
    def certificate(self) -> dict[str, Any]:
        return json.loads((self.sweep / "0/certificate.json").read_text())

    @property
    def page(self) -> str:
        return (self.sweep / "0/certificate.md").read_text()

    def table(self, name: str) -> pd.DataFrame:
        from specbench.metrics.results import read_jobs

        return read_jobs(self.sweep, name)


def run_once(
    factory: pytest.TempPathFactory,
    name: str,
    lines: Mapping[str, tuple[Sequence[str], bool]],
    prepare: Callable[[Path], object] = lambda _: None,
    anew: bool = False,
) -> dict[str, Ran]:
    """Runs command lines in one process, once for all workers.

    Their figures are blank; the smoke sweep of tests/cli/test_smoke.py draws its own.

    Args:
        name: of their folder, in which each line has one of its number.
        lines: by name, the arguments and whether a model may be loaded.
        prepare: writes files into the folder first.
        anew: in a new process, which has imported nothing, instead of a forked one.
    """

    def make(folder: Path) -> None:
        plan = [
            {"arguments": list(arguments), "folder": str(folder / str(number)), "may_load": may_load}
            for number, (arguments, may_load) in enumerate(lines.values())
        ]
        for case in plan:
            Path(case["folder"]).mkdir()
        prepare(folder)
        (folder / "plan.json").write_text(json.dumps(plan))
        files = (str(folder / "plan.json"), str(folder / "ended.json"))
        environment = clean_environment(folder)
        environment["PYTHONPATH"] += f"{os.pathsep}{folder}"
        apart("tests.helpers.command_lines", files, environment, anew)

    folder = once(factory, name, make)
    ended = [Ended(**fields) for fields in json.loads((folder / "ended.json").read_text())]
    return {
        name: Ran(outcome, folder / str(number))
        for number, (name, outcome) in enumerate(zip(lines, ended, strict=True))
    }


def fenced(page: str, heading: str) -> dict[str, str]:
    """The fenced blocks of a section of a page, by language: one each."""
    section = (ROOT / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    assert sorted(language for language, _ in blocks) == ["bash", "python", "yaml"]
    return dict(blocks)


def _recorded(load_pair: Callable, may_load: bool, loads: list[str], *args: str, check: Callable, **kwargs: Any) -> Any:
    loads.append(args[0])
    if not may_load:
        raise RuntimeError("a model would have been loaded")
    pair = load_pair(*args, **kwargs)  # cached; a check is another one for each line
    check(pair.target.config)
    return pair


def _main(plan: str, out: str) -> None:
    from hydra.core.global_hydra import GlobalHydra
    from matplotlib.figure import Figure

    import specbench.runs.execute  # noqa: F401  # which a job would import
    from specbench.__main__ import main
    from tests.helpers.blank_figures import save_blank

    Figure.savefig = save_blank  # ty: ignore[invalid-assignment]

    cases = json.loads(Path(plan).read_text())
    building: Any = None
    if any(case["may_load"] for case in cases):  # otherwise specbench shall not need transformers, which come with it
        from specbench.runs import building

        load_pair = functools.cache(building.load_pair)
    gc.freeze()  # what is imported stays: a tenth of most lines' time went into looking for garbage there
    ended = []
    for case in cases:
        loads: list[str] = []
        if building is not None:
            building._pairs.clear()
            building.load_pair = functools.partial(_recorded, load_pair, case["may_load"], loads)
        os.chdir(case["folder"])
        sys.argv = ["specbench", *case["arguments"]]
        GlobalHydra.instance().clear()
        text, status = io.StringIO(), 0
        with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
            try:
                main()
            except SystemExit as error:
                status = error.code or 0
            except Exception:  # what Python itself would show
                traceback.print_exc()
                status = 1
        loads += getattr(sys.modules.get("specbench.runs.building"), "_pairs", ())
        heavy = [name for name in HEAVY if name in sys.modules]
        ended.append({"status": status, "text": text.getvalue(), "loaded": bool(loads), "heavy": heavy})
    Path(out).write_text(json.dumps(ended))


if __name__ == "__main__":
    _main(*sys.argv[1:])
