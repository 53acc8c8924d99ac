"""The test files of what has changed since the last commit, or in it if nothing has: python -m tests.helpers.changed.

A module's tests are those in its room that are named after it or import it.
"""

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
        top, *inner = path.parts
        if top == "tests" and path.name.startswith("test_"):
            files.add(root / path)
        elif top == "specbench" and path.suffix == ".py":
            room = root / "tests" / (inner[0] if len(inner) > 1 else "api")
            files |= {file for file in room.glob("test_*.py") if _is_of(file, path)}
        elif top == "analysis":
            files |= {file for file in (root / "tests/analysis").glob("test_*.py") if _is_of(file, "specbench" / path)}
        elif top == "conf":
            files.add(root / "tests/tree/test_conf.py")
        elif path.suffix == ".md":
            files.add(root / "tests/tree/test_readme.py")
    return sorted(file for file in files if file.is_file())


def _is_of(test: Path, source: Path) -> bool:
    if source.stem in test.stem:
        return True
    module = ".".join(source.with_suffix("").parts)
    package, _, name = module.rpartition(".")
    imports = rf"^(from|import) {re.escape(module)}\b|^from {re.escape(package)} import .*\b{name}\b"
    return re.search(imports, test.read_text(encoding="utf-8"), re.MULTILINE) is not None


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    print(*(path.relative_to(ROOT) for path in files_for(changed())), sep="\n")
