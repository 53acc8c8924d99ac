"""What CONTRIBUTING.md says of a drafter and a processor of one's own: run as it stands there, outside of the tree."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.command_lines import ROOT, Ran, run_once

QUICK = (
    *("tracking.mode=disabled", "protocol.check.draws=64", "protocol.check.prefixes=1"),
    *("protocol.rounds=1", "protocol.max_rounds=1"),
)
PARTS = {
    "drafter": ("Add a drafter", "echo.py", "drafter/echo.yaml"),
    "sampler": ("Add a processor", "penalties.py", "sampler/penalised.yaml"),
}


def blocks(section: str) -> dict[str, str]:
    """The fenced blocks of a section, by language: one each."""
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    assert sorted(language for language, _ in found) == ["bash", "python", "yaml"]
    return dict(found)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    lines = {}
    for group, (section, _, _) in PARTS.items():
        python, flag, module, option, conf, *rest = shlex.split(blocks(section)["bash"])
        assert (python, flag, module, option, conf) == ("python", "-m", "specbench", "--config-dir", "conf")
        lines[group] = (("--config-dir", "../conf", *rest, *QUICK), True)

    def prepare(folder: Path) -> None:
        for section, module, yaml in PARTS.values():
            found = blocks(section)
            (folder / module).write_text(found["python"])
            (folder / "conf" / yaml).parent.mkdir(parents=True)
            (folder / "conf" / yaml).write_text(found["yaml"])

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
