"""Jobs of a sweep that run in one process, in turn or one after the other: each leaves what it would leave alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from specbench.core.machine.journal import TOGETHER
from specbench.metrics import results
from specbench.rules import RULES, RuleInfo
from specbench.runs import execute
from specbench.runs.config import Config
from specbench.runs.job import JobInfo
from specbench.runs.plan import Plan, PlannedJob
from tests.helpers.cli_cases import CUT
from tests.helpers.command_lines import Ran, clean_environment, run_once
from tests.helpers.processes import apart

MODULE = """
import json, random
from pathlib import Path
import numpy as np
import torch
from specbench.rules.token.naive import NaiveVerifier

class Drawing(NaiveVerifier):
    drawn = None

    def verify(self, *arguments):
        if self.drawn is None:
            self.drawn = [random.random(), np.random.rand(), float(torch.rand(()))]
            with open("drawn", "a") as file:
                print(json.dumps(self.drawn), file=file)
        return super().verify(*arguments)
"""
REGISTERING = """
from specbench.rules import register
from specbench.rules.rule import ReferenceVerifier, Rule
from specbench.rules.token.formulas import RULE as TOKEN

LAZY = register(Rule(name="lazy", title="lazy rule", thresholds=TOKEN.thresholds, guarantee="lossless"))

class Ruled(ReferenceVerifier):
    def __init__(self):
        super().__init__(LAZY)

class Named:
    rule, lossless = "lazy", True

    def verify(self, *arguments):
        return Ruled().verify(*arguments)
"""
SMALL = (
    *("+exp=gamma_sweep", "gamma=1,2", "workload.limit=3", "max_new_tokens=4", CUT),
    *("protocol.warmup=0", "protocol.check.prefixes=1", "protocol.check.draws=4", "tracking.mode=disabled"),
)
ALONE = ("protocol.together=false", "protocol.rounds=1", "protocol.max_rounds=1")
QUICK = ("protocol=agreement", "protocol.vocabulary=16", "batch_size=2", "tracking.mode=disabled")
PLAIN = "specbench.rules.token.naive.NaiveVerifier"
LINES = {
    "together": SMALL,
    "alone": (*SMALL, *ALONE),
    "greedy and hot": (*SMALL, "verifier=masked", "gamma=1", "sampler.temperature=0,1"),
    "drawing": ("verifier=naive", "verifier._target_=drawing.Drawing", "seed=1,2", "protocol.draws=5,6", *QUICK),
    "registering": (
        *("verifier=naive", f"verifier._target_={PLAIN},registering.Ruled,{PLAIN},registering.Named", "seed=3"),
        *("protocol.draws=5", *QUICK),
    ),
}


def _main(out: str) -> None:
    """Writes how many threads a job of this process would have."""
    Path(out).write_text(str(execute.PYTORCH_THREADS))


@pytest.mark.skipif(torch.cuda.is_available(), reason="no process is forked")
def test_a_forked_process_has_one_thread(tmp_path, monkeypatch):
    """OpenMP has no threads after a fork if its parent used several, and waits for them without end."""
    monkeypatch.setattr(execute, "PYTORCH_THREADS", 2)
    apart(__name__, (str(tmp_path / "threads"),), clean_environment(tmp_path))
    assert (tmp_path / "threads").read_text() == "1"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    def write_modules(folder: Path) -> None:
        (folder / "drawing.py").write_text(MODULE)
        (folder / "registering.py").write_text(REGISTERING)

    lines = {name: (line, "+exp=gamma_sweep" in line) for name, line in LINES.items()}
    return run_once(tmp_path_factory, "jobs_in_turn", lines, write_modules)


def test_each_job_has_its_row_and_its_tables(ended):
    says = "2 settings and plain decoding take turns: up to 3 rounds of 1 text, at most 60 s"
    ended["together"].ended.check(0, says)
    sweep, rows = ended["together"].sweep, ended["together"].rows
    assert rows["gamma"].tolist() == [1, 2]
    assert rows["rounds_of"].tolist() == [0, 0]
    assert rows["looks"].tolist() == [1, 1]
    assert [path.parent.name for path in sweep.glob(f"*/{TOGETHER}")] == ["0"]
    assert (sweep / "report/report.md").is_file()
    assert rows["batch_plain_seconds"][0].tolist() == pytest.approx(rows["batch_plain_seconds"][1].tolist())


@pytest.mark.parametrize("table", [results.STEPS, results.TEXTS, results.EMPIRICAL])
def test_texts_and_steps_are_those_of_jobs_that_run_alone(ended, table):
    ended["alone"].ended.check(0)
    one, other = (ended[name].table(table) for name in ("together", "alone"))
    keys = [name for name in ("job", "prompt", "prefix", "step", "token_id") if name in one]
    one, other = (rows.sort_values(keys, ignore_index=True) for rows in (one, other))
    assert len(one)
    assert one.to_json() == other.to_json()


def test_a_job_alone_shares_no_rounds(ended):
    assert ended["alone"].rows["rounds_of"].isna().all()
    assert not list(ended["alone"].sweep.glob(f"*/{TOGETHER}"))


def test_jobs_that_differ_in_more_than_verifier_and_gamma_share_no_rounds(ended):
    ended["greedy and hot"].ended.check(0)
    assert ended["greedy and hot"].rows["rounds_of"].tolist() == [0, 1]


def test_jobs_of_one_seed_draw_the_same_from_global_generators(ended):
    """A user's verifier may use them. What it draws is not to depend on the jobs before."""
    ended["drawing"].ended.check(0)
    lines = (ended["drawing"].folder / "drawn").read_text().splitlines()
    first, second, third, fourth = map(json.loads, lines)
    assert first == second
    assert third == fourth
    assert not {*first} & {*third}


def test_a_job_knows_the_rules_of_the_modules_that_it_uses(ended):
    """The second one imports the module, and later ones find it imported."""
    ended["registering"].ended.check(0)
    recorded = sorted(path.parent.name for path in ended["registering"].sweep.glob("*/rules.json"))
    assert recorded == ["1", "3"]


class Built(Exception):
    """Ends a job before it measures."""


def test_a_job_knows_the_rules_of_verifiers_that_it_decodes_with(monkeypatch):
    """Jobs that share their rounds (protocol.together): the first of each seed decodes with all verifiers."""
    rule = RuleInfo(name="of_a_module", title="rule of a module", guarantee="lossless")
    targets, rests = (PLAIN, "mine.Ruled", PLAIN, "mine.Ruled", PLAIN), ("first", "first", "second", "second", "")
    verifiers = [{"_target_": target} for target in targets]
    together = [{"verifier": verifiers[i], "gamma": 2, "rest": rest} if rest else {} for i, rest in enumerate(rests)]
    planned = [PlannedJob(0, str(i), "", [f"seed={i}"], together=part) for i, part in enumerate(together)]
    plan = Plan.new("adhoc", None).widened(planned)

    known = []

    def built(config, *_):
        """The first job imports the module, which registers its rule."""
        if not config.seed:
            RULES[rule.name] = rule
        known.append(rule.name in RULES)
        raise Built

    monkeypatch.setattr(execute, "_built", built)
    try:
        for number in range(5):
            job = JobInfo(number, "", Path(), "adhoc", {}, "", (), plan, False, True)
            with pytest.raises(Built):
                execute._measured(Config(verifier=verifiers[number], seed=number), job, "cpu", None)
        assert known == [True, True, True, True, False]
    finally:
        RULES.pop(rule.name, None)
