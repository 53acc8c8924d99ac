"""The test files of what has changed since the last commit, or in it if nothing has: python -m tests.helpers.changed.

A module's test files are those of its room that are named after it or import it, and the file that tests every yaml of
its kind (``OF_YAMLS``). If these are fewer than ``FEW``, the nearest others of all rooms but gpu/ join them: files that
are named after it, then files that import it, then files that import it through one other module (of tests/helpers or
of the library), and files with more modules in between only if there is none. Of files that are equally near, those
that import fewer modules come first. A package's modules count as importers of it. A changed helper has the ``FEW``
nearest files too. A file that is no Python, such as a template, has the tests of the module of its name beside it, or
of the package that it lies in.
"""

import functools
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FEW = 6
PACKAGES = {"specbench": "specbench", "analysis": "specbench.analysis", "tests": "tests"}  # folder -> package
OF_YAMLS = {"verifier": "tests.rules.test_verifiers", "protocol": "tests.protocols.test_honest_rows"}
STATEMENT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (?:\(([^)]*)\)|([^(\n]+))|import ([\w.]+))", re.MULTILINE)


def changed() -> list[str]:
    """Paths of files that differ from the last commit, new files included; without any, the files that it changed."""
    now = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    return now or _git("diff", "--name-only", "HEAD~1")


def files_for(paths: Iterable[str]) -> list[Path]:
    """Test files that belong to changed files, each once."""
    files: set[Path] = set()
    for path in map(Path, paths):
        top, *_ = path.parts
        if top == "tests" and path.name.startswith("test_"):
            files.add(ROOT / path)
        elif top in PACKAGES and (module := _nearest_module(path)):
            files |= set(related_tests(module))
        elif top == "conf":
            files.add(ROOT / "tests/tree/test_conf.py")
        if path.suffix == ".md":
            files.add(ROOT / "tests/tree/test_readme.py")
    return sorted(file for file in files if file.is_file())


def related_tests(module: str) -> list[Path]:
    """The test files of one module, as this file's docstring says."""
    graph = imports()
    _, *rooms, stem = module.split(".") if "." in module else (module, "api", module)
    prefix = f"tests.{rooms[0] if rooms else stem}.test_"
    distances = {module: 0, **{name: 1 for name in graph if name.endswith(f".test_{stem}")}}
    nearest = [name for name in distances if _is_test(name)]
    level = [module, *(name for name in graph if name.startswith(f"{module}."))]
    for distance in range(1, len(graph)):
        importers = {name for name in graph if not graph[name].isdisjoint(level)} - distances.keys()
        level = [name for name in importers if not _is_test(name)]
        distances |= dict.fromkeys(importers, distance)
        nearest += sorted(filter(_is_test, importers), key=lambda name: (len(graph[name]), name))
        if not importers or (distance > 1 and nearest):
            break
    own = {file: None for group, file in OF_YAMLS.items() if module in yaml_targets(group)}
    own |= dict.fromkeys(
        name for name in graph if name.startswith(prefix) and (module in graph[name] or stem in name[len(prefix) :])
    )
    others = [name for name in nearest if name not in own and not name.startswith("tests.gpu.")]
    return [modules()[name] for name in (*own, *others[: max(FEW - len(own), 0)])]


def yaml_targets(group: str) -> set[str]:
    """The modules of the classes that a group of conf names."""
    texts = (path.read_text(encoding="utf-8") for path in (ROOT / "conf" / group).rglob("*.yaml"))
    return {module for text in texts for module in re.findall(r"^_target_: ([\w.]+)\.", text, re.MULTILINE)}


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the source and of tests, with its file."""
    return {module_of(path.relative_to(ROOT)): path for top in PACKAGES for path in (ROOT / top).rglob("*.py")}


@functools.cache
def imports() -> dict[str, set[str]]:
    """What each module imports, in functions too. A name that a package passes on is of the module it is from."""
    bound = {name: dict(_bound(path.read_text(encoding="utf-8"))) for name, path in modules().items()}

    def home(name: str) -> str:
        package, _, last = name.rpartition(".")
        if name in bound or not package:
            return name
        passes_on = modules().get(package, ROOT).name == "__init__.py"
        source = bound[package].get(last, name) if passes_on else name
        return home(source if source != name else package)

    return {name: {home(source) for source in names.values()} & bound.keys() - {name} for name, names in bound.items()}


def module_of(path: Path) -> str:
    """The dotted name of a file, whose path is relative to the root."""
    top, *inner = path.with_suffix("").parts
    return ".".join([PACKAGES[top], *(part for part in inner if part != "__init__")])


def _bound(source: str) -> Iterator[tuple[str, str]]:
    """The names that import statements bind, each with what is imported, and the modules that strings name."""
    yield from ((name, name) for name in re.findall(r'"(specbench(?:\.\w+)+)', source))
    for package, inner, line, module in STATEMENT.findall(source):
        if module:
            yield module, module
        for name, alias in re.findall(r"(\w+)(?: as (\w+))?", inner or line):
            yield alias or name, f"{package}.{name}"


def _nearest_module(path: Path) -> str | None:
    """The module of a file, or the nearest one to a file that is no Python; None if it is gone, or data of tests."""
    known = modules().keys()
    if path.suffix == ".py" or path.parts[0] == "tests":
        return module_of(path) if path.suffix == ".py" and module_of(path) in known else None
    return next(name for place in (path, *path.parents) if (name := module_of(place)) in known)


def _is_test(module: str) -> bool:
    return module.rpartition(".")[2].startswith("test_")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


if __name__ == "__main__":
    print(*(path.relative_to(ROOT) for path in files_for(changed())), sep="\n")
