"""The test files of what has changed since the last commit, or in it if nothing has: python -m tests.helpers.changed.

A module's tests are those in its room that are named after it or import it. If there are none, they are all tests that
import it, and if no test does, those of the modules that import it.
"""

import functools
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def changed() -> list[str]:
    """Paths of files that differ from the last commit, new files included; without any, the files that it changed."""
    now = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return now or _git("diff", "--name-only", "HEAD~1")


def files_for(paths: Iterable[str], root: Path = ROOT) -> list[Path]:
    """Test files below ``root`` that belong to changed files, each once."""
    files: set[Path] = set()
    for path in map(Path, paths):
        top = path.parts[0]
        if top == "tests" and path.name.startswith("test_"):
            files.add(root / path)
        elif top in ("specbench", "analysis") and path.suffix == ".py":
            files |= _tests_of(path, root)
        elif top == "conf":
            files.add(root / "tests/tree/test_conf.py")
        elif path.suffix == ".md":
            files.add(root / "tests/tree/test_readme.py")
    return sorted(file for file in files if file.is_file())


def _tests_of(path: Path, root: Path) -> set[Path]:
    tests = sorted((root / "tests").rglob("test_*.py"))
    room = path.parts[1] if len(path.parts) > 2 else "analysis" if path.parts[0] == "analysis" else "api"
    belonging = {
        test for test in tests if test.parent.name == room and (path.stem in test.stem or _imports(test, path))
    }
    wanted, seen = {path}, {path}
    while wanted and not belonging:
        belonging = {test for test in tests for source in wanted if _imports(test, source)}
        modules = {file.relative_to(root) for file in (root / "specbench").rglob("*.py")} - seen
        wanted = {module for module in modules for source in wanted if _imports(root / module, source)}
        seen |= wanted
    return belonging


def _imports(file: Path, source: Path) -> bool:
    """Whether a file imports or names a module; of a package, names that the package itself exports."""
    module = ".".join(source.with_suffix("").parts).removesuffix(".__init__")
    module = f"specbench.{module}" if source.parts[0] == "analysis" else module
    package, _, name = module.rpartition(".")
    dotted = rf"(?<![\w.]){re.escape(module)}(?!\w|\.[a-z])"
    return re.search(rf"{dotted}|from {re.escape(package)} import ([^(\n]*|\([^)]*)\b{name}\b", _text(file)) is not None


@functools.cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    print(*(path.relative_to(ROOT) for path in files_for(changed())), sep="\n")
