"""The step that docs/judge.md puts into an engine's workflow, run as it is written there: its status and its files."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

import pytest
import yaml

from specbench.exactness.zoo.bugs import bugs
from specbench.sources import Mode
from tests.helpers import made_up_engines as engines
from tests.helpers.command_lines import ROOT, Ran, run_once
from tests.helpers.text_servers import llama_of, serving

ENGINES = {"sound": engines.Engine(), "flawed": engines.AlwaysGreedy(), "repeats": engines.IgnoresSeeds()}
FEW = ("protocol.texts=240", "protocol.prompts=4", "protocol.length=3", "protocol.greedy_length=8", "protocol.rounds=0")


def step() -> list[str]:
    """The arguments of the page's step."""
    page = (ROOT / "docs/judge.md").read_text()
    workflow = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    commands = [step.get("run", "").split() for step in workflow["jobs"]["judge"]["steps"]]
    (command,) = [words for words in commands if words[:3] == ["python", "-m", "specbench"]]
    return command[3:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """The step with each engine behind two servers, whose ports are free ones, and fewer texts."""
    lines: dict[str, tuple[list[str], bool]] = {}
    with contextlib.ExitStack() as servers:
        for name, engine in ENGINES.items():
            fast, plain = (servers.enter_context(serving(llama_of(engine, mode))).url for mode in reversed(Mode))
            lines[name] = ([*step(), f"source.url={fast}", f"source.plain_url={plain}", *FEW], False)
        return run_once(tmp_path_factory, "judge", lines)


@pytest.mark.parametrize(
    ("name", "status", "verdict"),
    [("sound", 0, "not refuted"), ("flawed", 1, "refuted"), ("repeats", 0, "cannot tell")],
)
def test_the_step_fails_if_the_engine_is_refuted_alone(name, status, verdict, runs):
    run = runs[name]
    run.ended.check(status)
    assert json.loads(uploaded_text(run, "certificate.json"))["findings"][0]["verdict"] == verdict
    assert len(uploaded_text(run, "texts.jsonl").splitlines()) > 60
    assert ("is refuted" in run.ended.text) == (status == 1)


def uploaded_text(run: Ran, name: str) -> str:
    """A file in the folder that the workflow uploads."""
    (path,) = (run.folder / "judge").rglob(name)
    return Path(path).read_text()


def test_the_table_of_what_texts_find_names_bugs_of_the_zoo_and_adds_up():
    """It holds measurements of one commit."""
    page = (ROOT / "docs/judge.md").read_text()
    rows = re.findall(r"^\| (\w+) \| (not|[\d,]+) \| (not|[\d,]+).* \|$", page, re.MULTILINE)
    names = [name for name, *_ in rows]
    assert len(set(names)) == len(names)
    assert set(names) <= set(bugs())
    refuted = [sum(row[column] != "not" for row in rows) for column in (1, 2)]
    counted = re.search(
        r"^Without a checkpoint (\d+) of the (\d+) .* with target and draft (\d+) of (\d+),", page, re.MULTILINE
    )
    others = re.search(r"^\| (\d+) others, and the sound one .*\n\| (\d+) others \| not asked ", page, re.MULTILINE)
    unrefuted = re.search(r"^Many of the (\d+) are", page, re.MULTILINE)
    assert counted is not None
    assert others is not None
    assert unrefuted is not None
    assert [int(counted[1]), int(counted[3])] == refuted
    tried, untried = int(others[1]), int(others[2])
    assert int(counted[2]) == len(rows) + tried
    assert int(counted[4]) == len(rows) + tried + untried
    assert int(unrefuted[1]) == tried + untried
