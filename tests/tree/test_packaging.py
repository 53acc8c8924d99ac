"""The sdist and the wheel: what is in them, and that nothing but the wheel is needed beside what it depends on."""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from specbench import __version__
from tests.helpers.command_lines import ROOT, clean_environment, once

NAME = f"specbench-{__version__}"
# What `make test` needs, and what a reader looks for.
NEEDED = (
    "Makefile", "constraints.txt", "constraints-lowest.txt", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE",
    "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CITATION.cff", ".ci/run", ".github/workflows/ci.yml",
    ".github/workflows/release.yml", "Containerfile", ".dockerignore", "docs/conf.py", "docs/first-run.md",
    ".gitignore", ".pre-commit-config.yaml", "conf/config.yaml", "analysis/gamma_sweep.py", "specbench/py.typed",
    "specbench/models/embedded/target/model.safetensors", "experiments/gamma_sweep.md", "tests/conftest.py",
)  # fmt: skip
ASK = """
import json, sys
from specbench import __version__
from specbench.core.machine import provenance
from specbench.runs import reporting
module = reporting.analysis_module("gamma_sweep")
print(json.dumps([__version__, provenance.commit(), module.__name__, module.__file__, "analysis" in sys.modules]))
"""


@dataclass(frozen=True)
class Built:
    """Names in the sdist without its top folder, if there is one, and the wheel's contents, unpacked."""

    sdist: set[str]
    wheel: Path


def git(*arguments: str) -> str | None:
    """What git says of this checkout; None in an unpacked sdist."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 and (ROOT / ".git").exists() else None


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Built:
    """The sdist of this tree, and the wheel of that sdist, as `python -m build` makes them.

    The short form makes the wheel of the tree, without an sdist.
    """

    def build(folder: Path) -> None:
        command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target"]
        source, names = ROOT, []
        if thorough:
            subprocess.run([*command, "sdist"], cwd=ROOT, capture_output=True, check=True)
            with tarfile.open(folder / f"{NAME}.tar.gz") as sdist:
                names = sdist.getnames()
                sdist.extractall(folder / "sdist", filter="data")
            source = folder / "sdist" / NAME
        (folder / "names.json").write_text(json.dumps(names))
        subprocess.run([*command, "wheel"], cwd=source, capture_output=True, check=True)
        with zipfile.ZipFile(folder / f"{NAME}-py3-none-any.whl") as wheel:
            wheel.extractall(folder / "wheel")

    folder = once(tmp_path_factory, "packages", build)
    names = json.loads((folder / "names.json").read_text())
    return Built({name.removeprefix(f"{NAME}/") for name in names}, folder / "wheel")


@pytest.mark.thorough
def test_the_sdist_has_all_that_make_test_needs(built: Built):
    assert built.sdist >= set(NEEDED)
    tracked = git("ls-files", "-z")
    if tracked is not None:
        assert built.sdist >= set(tracked.split("\0")) - {""}
    assert not [name for name in built.sdist if name.split("/")[0] in (".git", ".venv", "outputs", "dist")]


def test_the_wheel_is_small(built: Built):
    """At most 30 MB, of which nearly all is the embedded pair."""
    assert (built.wheel.parent / f"{NAME}-py3-none-any.whl").stat().st_size <= 30e6


def test_the_wheel_has_one_package(built: Built):
    assert {path.name for path in built.wheel.iterdir()} == {"specbench", f"{NAME}.dist-info"}
    for folder in ("conf", "analysis"):
        files = {
            path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.[pym][yad]*") if "__pycache__" not in path.parts
        }
        assert len(files) > 10
        assert all((built.wheel / "specbench" / file).is_file() for file in files)
    assert (built.wheel / "specbench/py.typed").is_file()
    assert {path.name for path in (built.wheel / "specbench/reports/web").iterdir()} >= {"style.css", "sort.js"}
    assert not (built.wheel / "specbench/analysis.py").exists()
    assert not list(built.wheel.rglob("test_*"))


def test_the_wheel_is_enough_and_knows_where_it_is_from(built: Built, tmp_path: Path):
    """In a folder whose user has an `analysis` of their own. An sdist, which has no git, hands its commit on."""
    (tmp_path / "analysis").mkdir()
    for name in ("__init__", "gamma_sweep"):
        (tmp_path / f"analysis/{name}.py").write_text("raise RuntimeError('not this one')")
    environment = clean_environment(tmp_path) | {"PYTHONPATH": os.pathsep.join(("", str(built.wheel)))}
    done = subprocess.run(
        [sys.executable, "-c", ASK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    version, commit, name, file, theirs = json.loads(done.stdout)
    assert version == __version__
    assert name == "specbench.analysis.gamma_sweep"
    assert Path(file) == built.wheel / "specbench/analysis/gamma_sweep.py"
    assert not theirs
    head = git("rev-parse", "HEAD")
    if head is not None:
        dirty = "-dirty" if git("status", "--porcelain", "--untracked-files=no") else ""
        assert commit == head.strip() + dirty
