"""What CONTRIBUTING.md says of a drafter and a processor of one's own: run as it stands there, outside of the tree."""

import json
import re
from pathlib import Path

import pytest

from specbench.metrics.results import read_results
from tests.helpers.command_lines import ROOT
from tests.tree.test_own_verifier import shell

QUICK = (
    "tracking.mode=disabled protocol.check.draws=64 protocol.check.prefixes=1 protocol.rounds=1 protocol.max_rounds=1"
)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("section", "module", "yaml"),
    [("Add a drafter", "echo.py", "drafter/echo.yaml"), ("Add a processor", "penalties.py", "sampler/penalised.yaml")],
)
def test_a_part_from_outside_of_the_tree_runs_by_a_module_and_a_yaml(section, module, yaml, tmp_path):
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    found = dict(re.findall(r"^```(\w+)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    assert set(found) == {"python", "yaml", "bash"}
    folder = tmp_path / "my own"
    written = folder / "conf" / yaml
    written.parent.mkdir(parents=True)
    (folder / module).write_text(found["python"])
    written.write_text(found["yaml"])
    ended = shell(f"{found['bash'].strip()} {QUICK}", folder)
    assert ended.status == 0, ended.text
    row = read_results(ended.folder.parent).iloc[0]
    assert row[Path(yaml).parent.name] == Path(yaml).stem
    assert row["tokens"] > 0
    processors = json.loads(row["sampling"])["processors"]
    assert processors == ([{"_target_": "penalties.FrequencyPenalty", "penalty": 0.5}] if "sampler" in yaml else [])
    if "drafter" in yaml:
        assert row["drafted"] > 0
        assert row["check_p_value"] == 1  # greedy: the first token is the plain one
