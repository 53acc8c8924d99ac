"""What reports say of rules beside each other: a verdict, or that chance explains it and what would tell."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis import decoding
from specbench.core.machine.progress import console
from specbench.metrics.acceptance import totals_by_prompt
from specbench.metrics.results import STEPS, StepRow, read_jobs, write_rows
from specbench.replay.trace import TRACE
from specbench.reports.between import tokens_a_step
from specbench.rules import RULES, TOKEN, RuleInfo, SeriesLook
from specbench.runs.ending import tell
from specbench.runs.state import JobState, Status
from tests.helpers.made_up_rows import make_row, write_run
from tests.helpers.small_sweeps import planned_sweep

RUN = "python -m specbench protocol=replay"


def sweep(folder: Path, accepted: dict[str, list[list[int]]], cut: int = 0, **changes: Any) -> Path:
    """A run of one gamma and several verifiers, from the tokens that each step of each prompt accepted.

    Args:
        cut: tokens that do not stand of each first step, behind the end of a text.
    """
    rows = [make_row(job=job, gamma=4, verifier=name, **changes) for job, name in enumerate(accepted)]
    write_run(folder, rows, empirical=False)
    for job, prompts in enumerate(accepted.values()):
        steps = [
            StepRow(f"p{number}", step, 4, count, count + 1 - (0 if step else cut), 4)
            for number, counts in enumerate(prompts)
            for step, count in enumerate(counts)
        ]
        write_rows(folder / str(job) / STEPS, steps, StepRow)
    return folder


def verdict_text(folder: Path) -> str:
    verdicts = tokens_a_step(folder, decoding.read_run(folder, "gamma"), ["gamma"])
    return "\n".join(verdicts)


def test_a_rule_that_yields_more_is_named_with_an_interval(tmp_path: Path) -> None:
    few, many = [[1, 1, 2], [1, 2, 1], [2, 1, 1], [1, 1, 1]], [[3, 3, 2], [3, 4, 3], [3, 3, 3], [3, 2, 3]]
    run = sweep(tmp_path, {"block": many, "masked": few, "fused": few}, cut=1)
    lengths = [
        totals["emitted"].sum() / totals["steps"].sum()
        for _, steps in read_jobs(run, STEPS).groupby("job")
        for totals in [totals_by_prompt(steps)]
    ]
    text = verdict_text(run)
    assert "**block yields more tokens a step than masked** at gamma 4 " in text
    assert f"({lengths[0]:.2f} against {lengths[1]:.2f}, {lengths[0] / lengths[1]:.2f} [" in text
    assert "chance" not in text
    assert "fused" not in text  # it is of masked's rule, with which it is held against block once
    assert "**block yields fewer tokens" in verdict_text(sweep(tmp_path / "2", {"masked": many, "block": few}))


def test_a_difference_within_chance_names_the_replay_that_tells(tmp_path: Path) -> None:
    """Without a word, 2.40 against 2.91 tokens a step would pass for a finding against a lossless rule."""
    accepted = {"masked": [[4, 4, 1], [0, 1, 1], [3, 0, 4]], "block": [[0, 1, 1], [4, 0, 2], [1, 1, 1]]}
    run = sweep(tmp_path, accepted, temperature=0.7, sampling='{"temperature": 0.7, "n": 2, "min_tokens": 3}')
    (run / "0" / TRACE).touch()
    text = verdict_text(run)
    assert "**block and masked differ by less than chance in tokens a step** at gamma 4 (2.22 against 3.00); " in text
    sampler = "sampler.temperature=0.7 sampler.min_tokens=3"
    command = f"{RUN} protocol.trace={run}/0/{TRACE} 'protocol.planned=[4]' {sampler}"
    assert f"`{command}` compares them on the same texts" in text


def test_the_replay_of_a_rule_of_ones_own_names_its_verifier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the replay knew nothing of the rule, and compared the token rule with the block rule."""
    rule = RuleInfo(
        name="mine", title="my rule", token_cost=TOKEN.token_cost, verifiers={"mine": SeriesLook("blue", "o")}
    )
    accepted = {"masked": [[4, 4, 1], [0, 1, 1], [3, 0, 4]], "mine": [[0, 1, 1], [4, 0, 2], [1, 1, 1]]}
    config = '{"verifier": {"_target_": "mine.Mine", "a": 0.7}}'
    run = sweep(tmp_path, accepted, config=config)
    (run / "0" / TRACE).touch()
    monkeypatch.setitem(RULES, "mine", rule)
    words = "'protocol.planned=[4]' verifier._target_=mine.Mine +verifier.a=0.7"
    assert f"`{RUN} protocol.trace={run}/0/{TRACE} {words}` compares them" in verdict_text(run)
    monkeypatch.setitem(RULES, "mine", dataclasses.replace(rule, token_cost=None))
    assert RUN not in verdict_text(run)


def test_without_a_trace_more_prompts_are_the_remedy(tmp_path: Path) -> None:
    accepted = {"masked": [[4, 4, 1]], "mine": [[0, 1, 1]]}
    text = verdict_text(sweep(tmp_path, accepted))  # a single prompt, which tells nothing
    assert "mine and masked differ by less than chance" in text
    assert "more prompts would tell (`workload.limit`)" in text
    assert RUN not in text


@pytest.mark.parametrize("verifiers", [["masked", "naive"], ["block"]])
def test_runs_of_one_rule_have_no_verdict(tmp_path: Path, verifiers: list[str]) -> None:
    assert verdict_text(sweep(tmp_path, {name: [[1, 2], [3, 0]] for name in verifiers})) == ""


def test_equal_lengths_are_called_equal(tmp_path: Path) -> None:
    text = verdict_text(sweep(tmp_path, {"masked": [[1, 2], [3, 0]], "block": [[1, 2], [3, 0]]}))
    assert text.startswith("block and masked yield equally many tokens a step at gamma 4. ")


def test_the_table_of_a_sweep_is_followed_by_the_verdict(tmp_path: Path) -> None:
    run = sweep(tmp_path, {"masked": [[4, 4, 1], [0, 1, 1]], "block": [[0, 1, 1], [4, 0, 2]]}, other_cores=8.0)
    planned_sweep(run, *(JobState(name, status=Status.DONE) for name in "ab"))
    with console.capture() as shown:
        assert tell(run, just_ran=False) == 0
    text = " ".join(shown.get().split())
    verdict = "block and masked differ by less than chance"
    sentences = ("The highest speedup is", verdict, "Other processes used up to 8.0 of")
    places = [text.index(sentence) for sentence in sentences]
    assert places == sorted(places)  # the answers before what disturbed the machine
