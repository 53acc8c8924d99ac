"""What CONTRIBUTING.md says of a drafter and a processor of one's own: run as it stands there, outside of the tree."""

import json
import shlex
from pathlib import Path

import pytest

from tests.helpers.cli_cases import CUT
from tests.helpers.command_lines import Ran, fenced, run_once

QUICK = (
    *("tracking.mode=disabled", "protocol.check.draws=64", "protocol.check.prefixes=1"),
    *("protocol.rounds=1", "protocol.max_rounds=1", "protocol.warmup=0", CUT),
)
PARTS = {
    "drafter": ("Add a drafter", "echo.py", "drafter/echo.yaml"),
    "sampler": ("Add a processor", "penalties.py", "sampler/penalised.yaml"),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    lines = {}
    for group, (section, _, _) in PARTS.items():
        python, flag, module, option, conf, *rest = shlex.split(fenced("CONTRIBUTING.md", section)["bash"])
        assert (python, flag, module, option, conf) == ("python", "-m", "specbench", "--config-dir", "conf")
        lines[group] = (("--config-dir", "../conf", *rest, *QUICK), True)

    def prepare(folder: Path) -> None:
        for section, module, yaml in PARTS.values():
            fences = fenced("CONTRIBUTING.md", section)
            (folder / module).write_text(fences["python"])
            (folder / "conf" / yaml).parent.mkdir(parents=True)
            (folder / "conf" / yaml).write_text(fences["yaml"])

    return run_once(tmp_path_factory, "own_parts", lines, prepare)


@pytest.mark.parametrize("group", PARTS)
def test_a_part_from_outside_of_the_tree_runs_by_a_module_and_a_yaml(group, ran):
    got = ran[group]
    assert got.ended.status == 0, got.ended.text
    row = got.rows.iloc[0]
    assert row[group] == Path(PARTS[group][2]).stem
    assert row["tokens"] > 0
    processors = json.loads(row["sampling"])["processors"]
    assert processors == ([{"_target_": "penalties.FrequencyPenalty", "penalty": 0.5}] if group == "sampler" else [])
    if group == "drafter":
        assert row["drafted"] > 0
        assert row["check_p_value"] == 1  # greedy: the first token is the plain one
