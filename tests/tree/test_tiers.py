"""Which tests make check, make test and make test-all run."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.changed import files_for

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


def test_a_module_has_the_files_for_its_room_that_name_or_import_it():
    changed = [
        "specbench/decoding/step.py",
        "specbench/decoding/engines/graph.py",
        "conf/config.yaml",
        "tests/tree/test_conf.py",
    ]
    names = {file.name for file in files_for(changed)}
    assert {"test_step.py", "test_step_memory.py", "test_engines.py", "test_conf.py"} <= names
    assert "test_decoding_kernels.py" not in names, "of another room"
    assert files_for(["specbench/nowhere/nothing.py", "LICENSE"]) == []


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("specbench/runs/workloads/columns.py", "test_workloads.py"),
        ("specbench/runs/gpus.py", "test_gpus.py"),
        ("specbench/reports/cells.py", "test_replay_reports.py"),
        ("analysis/vocabularies.py", "test_analysis.py"),
    ],
)
def test_a_module_that_no_test_of_its_room_imports_has_those_that_do_or_that_import_its_readers(module, test):
    assert test in {file.name for file in files_for([module])}
