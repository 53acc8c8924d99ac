"""Jobs of a sweep that run in one process: each meets what it would meet alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.rules import RULES, RuleInfo
from specbench.runs import execute
from specbench.runs.config import Config
from specbench.runs.job import JobInfo
from specbench.runs.plan import Plan, PlannedJob
from tests.helpers.command_lines import run_once

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
QUICK = ("protocol=agreement", "protocol.vocabulary=16", "batch_size=2", "tracking.mode=disabled")
PLAIN = "specbench.rules.token.naive.NaiveVerifier"
LINES = {
    "drawing": ("verifier=naive", "verifier._target_=drawing.Drawing", "seed=1,2", "protocol.draws=5,6", *QUICK),
    "registering": (
        *("verifier=naive", f"verifier._target_={PLAIN},registering.Ruled,{PLAIN},registering.Named", "seed=3"),
        *("protocol.draws=5", *QUICK),
    ),
}


def write_modules(folder: Path) -> None:
    (folder / "drawing.py").write_text(MODULE)
    (folder / "registering.py").write_text(REGISTERING)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    lines = {name: (line, False) for name, line in LINES.items()}
    return run_once(tmp_path_factory, "jobs_in_a_row", lines, write_modules)


def test_jobs_of_one_seed_draw_the_same_from_global_generators(ended):
    """A user's verifier may use them. What it draws is not to depend on the jobs before."""
    assert ended["drawing"].ended.status == 0, ended["drawing"].ended.text
    lines = (ended["drawing"].folder / "drawn").read_text().splitlines()
    first, second, third, fourth = map(json.loads, lines)
    assert first == second
    assert third == fourth
    assert not {*first} & {*third}


def test_a_job_knows_the_rules_of_the_modules_that_it_uses(ended):
    """The second one imports the module, and later ones find it imported."""
    assert ended["registering"].ended.status == 0, ended["registering"].ended.text
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
