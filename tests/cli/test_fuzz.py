"""Made-up command lines end in rows of the requested choices, or in one clear message: never in a traceback."""

import pytest

from tests.helpers.command_lines import clean_environment
from tests.helpers.processes import apart


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.long)])
def test_made_up_command_lines_end_in_rows_or_in_a_message(tmp_path, count):
    environment = clean_environment(tmp_path, hide_gpus=True)
    apart("tests.helpers.fuzz_command_lines", (str(tmp_path), str(count)), environment)
