"""Which tests make check, make test and make test-all run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.changed import FEW, ROOT, files_for, imports, modules, related_tests

pytest_plugins = ["pytester"]
CASES = """
import pytest

@pytest.mark.cases(2, 4)
@pytest.mark.parametrize("number", range(6))
def test_several(number): pass

@pytest.mark.thorough
def test_long_form(): pass

def test_short_form(): pass
"""


def test_make_test_runs_the_cases_that_are_spread_and_no_thorough_test(
    pytester: pytest.Pytester, pytestconfig: pytest.Config
):
    conftest = pytestconfig.pluginmanager.getplugin(str(Path(__file__).parents[1] / "conftest.py"))
    spread = SimpleNamespace(pytest_collection_modifyitems=conftest.pytest_collection_modifyitems)
    pytester.makeini("[pytest]\nmarkers =\n  cases(n, m): .\n  thorough: .\n  long: .\n")
    pytester.makepyfile(CASES)
    ran = pytester.runpytest_inprocess("-vv", "-m", "not thorough and not long", plugins=[spread])
    ran.assert_outcomes(passed=3, deselected=5)
    ran.stdout.fnmatch_lines(
        ["*test_several[[]0[]] PASSED*", "*test_several[[]3[]] PASSED*", "*test_short_form PASSED*"]
    )
    pytester.runpytest_inprocess("-m", "not long", plugins=[spread]).assert_outcomes(passed=6, deselected=2)


def test_a_module_has_the_files_of_its_room_and_the_nearest_others():
    changed = [
        "specbench/decoding/step.py",
        "specbench/decoding/engines/graph.py",
        "conf/config.yaml",
        "tests/tree/test_conf.py",
    ]
    names = {file.name for file in files_for(changed)}
    assert {"test_step.py", "test_step_memory.py", "test_engines.py", "test_conf.py"} <= names
    assert "test_kernels_on_gpu.py" not in names, "far from both"
    assert {file.name for file in files_for(["specbench/models/threads.py"])} >= {"test_threads.py"}, "named after it"
    assert {file.name for file in files_for(["specbench/reports/words/ranking.md"])} >= {"test_readme.py"}
    assert files_for(["specbench/nowhere/nothing.py", "LICENSE"]) == []


def test_every_module_has_a_few_test_files():
    """A module that nothing imports, and no yaml names, has none."""
    files = {name: related_tests(name) for name in modules() if name.startswith("specbench")}
    assert len(files) > 350
    assert [name for name in files if not files[name]] == []
    assert {name: len(files[name]) for name in files if len(files[name]) > 2 * FEW + 2} == {}


def test_test_files_lie_in_the_room_of_what_they_test():
    """A file imports a module of its room, by helpers or other tests too, or runs a script of experiments/."""
    graph = imports()

    def reached(name: str) -> set[str]:
        return graph[name].union(*(reached(other) for other in graph[name] if other.startswith("tests.")))

    rooms = {path.name for path in (ROOT / "specbench").iterdir() if path.is_dir()}
    files = {name: modules()[name] for name in graph if _room(name) in rooms and ".test_" in name}
    assert len(files) > 150
    assert [
        name
        for name, path in files.items()
        if _room(name) not in map(_room, reached(name)) and "from experiments" not in path.read_text(encoding="utf-8")
    ] == []


def _room(module: str) -> str:
    """The room of a module of specbench or of tests; specbench itself gives what is in api."""
    return "api" if module == "specbench" else module.split(".")[1]


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("specbench/runs/workloads/columns.py", "test_workloads.py"),
        ("specbench/runs/gpus.py", "test_gpus.py"),
        ("specbench/reports/cells.py", "test_replay_reports.py"),
        ("analysis/vocabularies.py", "test_analysis.py"),
    ],
)
def test_a_module_that_no_test_imports_has_those_of_its_readers(module, test):
    assert test in {file.name for file in files_for([module])}
