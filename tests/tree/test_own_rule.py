"""What docs/verifier.md says of a rule of one's own: its module and yaml, outside of the tree, in every protocol."""

import re
from pathlib import Path

import pytest

from specbench.analysis import replay_sweep
from tests.helpers.cli_cases import AS_SLOW_CODE, CUT
from tests.helpers.command_lines import Ran, fenced, run_once
from tests.helpers.made_up_rows import markdown_report

OFF = ("tracking.mode=disabled", "threads=1")
CERTIFIED = (
    *("protocol=exactness", "protocol.suite=quick", "protocol.draws=10000", "protocol.serial_draws=0"),
    *("protocol.calls=480", "protocol.use_calls=50", "protocol.inputs_seed=1", "protocol.row_vocabulary=50"),
    *("protocol.seconds=0", "protocol.input_seconds=0"),  # so much is drawn, however busy the machine is
)
AGREEMENT = (
    *("protocol=agreement", "protocol.vocabulary=97", "protocol.draws=3000", "protocol.steps=20"),
    "batch_size=8",
)
LATENCY = (
    *("protocol=latency", "protocol.vocabulary=97", "protocol.grid=[{batch_size:[2]},{sampler:[greedy,one_hot]}]"),
    *("protocol.rounds=1", "protocol.replays=3", "protocol.host_calls=1"),
)
REPLAY = (
    *("protocol=replay_check", "protocol.gammas=[2,3]", "protocol.decoded=[3]", "protocol.warmup=0"),
    *("workload.limit=6", "max_new_tokens=20", "batch_size=6", CUT),
)
# The mistake that the rule invites: the residual of the token rule, whose thresholds are higher.
SOUND, WRONG = "weights = p - self.a * torch.minimum(p, q)", "weights = batched.residual(p, q)"
# A rule that is known by name and promise alone.
NAMED = """
import lazy
from specbench.rules.rule import Rule


class Named(lazy.Lazy):
    def __init__(self):
        super().__init__(0.7)
        self.rule = Rule(name="named", title="named rule", guarantee="lossless")
"""
LINES: dict[str, tuple[tuple[str, ...], bool]] = {
    "certified": ((*CERTIFIED, AS_SLOW_CODE, "verifier=lazy"), False),
    "refuted": ((*CERTIFIED, "verifier._target_=wrong.Lazy"), False),
    "agreement": ((*AGREEMENT, "verifier=lazy"), False),
    "agreement, wrong": ((*AGREEMENT, "verifier._target_=wrong.Lazy"), False),
    "agreement, named": ((*AGREEMENT, "verifier._target_=named.Named"), False),
    "latency": ((*LATENCY, "verifier=lazy"), False),
    "latency, wrong": ((*LATENCY, "verifier._target_=wrong.Lazy"), False),
    "latency, named": ((*LATENCY, "verifier._target_=named.Named"), False),
    "replay": ((*REPLAY, "verifier=lazy", "verifier.a=0.3"), True),
    "replay, named": ((*REPLAY, "verifier._target_=named.Named"), False),
}


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    return fenced("docs/verifier.md", "Add a rule")


@pytest.fixture(scope="module")
def ran(
    tmp_path_factory: pytest.TempPathFactory, blocks: dict[str, str], thorough: bool, small_buffers: None
) -> dict[str, Ran]:
    chosen = {name: line for name, line in LINES.items() if thorough or name not in ("certified", "refuted")}

    def prepare(folder: Path) -> None:
        (folder / "conf" / "verifier").mkdir(parents=True)
        (folder / "conf" / "verifier" / "lazy.yaml").write_text(blocks["yaml"])
        (folder / "lazy.py").write_text(blocks["python"])
        assert blocks["python"].count(SOUND) == 1
        (folder / "wrong.py").write_text(blocks["python"].replace(SOUND, WRONG))
        (folder / "named.py").write_text(NAMED)

    lines = {name: (("--config-dir", "../conf", *line, *OFF), loads) for name, (line, loads) in chosen.items()}
    return run_once(tmp_path_factory, "own_rule", lines, prepare)


def test_the_command_is_the_one_that_is_run(blocks):
    assert blocks["bash"].split()[3:] == [
        *("--config-dir", "conf", "protocol=exactness", "verifier=lazy", "protocol.suite=quick", "threads=1"),
    ]


@pytest.mark.thorough
def test_its_law_certifies_it(ran):
    """By its formulas alone, which no rule of that name has here: without them it ends as not rejected."""
    got = ran["certified"]
    assert got.ended.status == 0, got.ended.text
    certificate = got.certificate
    assert certificate["headline"].startswith("lossless up to")
    assert certificate["rule"] == "lazy"
    assert all(bound["rule_error"] is None or bound["rule_error"] < 1e-12 for bound in certificate["bounds"])
    assert sum(bound["rule_error"] is not None for bound in certificate["bounds"]) > 5
    assert {bound["method"] for bound in certificate["bounds"]} == {"rule"}
    assert all(row["structural"] == row["rule_wrong"] == 0 for row in certificate["inputs"])
    assert certificate["inputs"][0]["rule_checked"] > 0
    acceptance = [row for row in certificate["tests"] if row["test"].startswith("acceptance")]
    assert acceptance
    assert all(row["p_value"] > 1e-6 for row in acceptance)


@pytest.mark.thorough
def test_a_verifier_that_does_not_follow_it_is_refuted_with_what_it_would_emit(ran):
    got = ran["refuted"]
    assert got.ended.status == 1
    assert got.certificate["headline"].startswith("not lossless: TV")
    assert re.search(r"^    by the lazy rule: \[[\d, ]+\]$", got.page, flags=re.MULTILINE)


def test_agreement_holds_it_against_code_made_of_its_formulas(ran):
    (row,) = ran["agreement"].table("agreement.parquet").to_dict("records")
    assert (row["rule"], row["twin"], row["wrong"]) == ("lazy", "ReferenceVerifier", 0)
    (row,) = ran["agreement, wrong"].table("agreement.parquet").to_dict("records")
    assert row["wrong"] > 50
    got = ran["agreement, named"].ended
    assert got.status == 1
    assert "its rule 'named' has no twin that draws the same tokens" in got.text
    assert "give it a Rule with thresholds" in got.text


def test_latency_checks_it_and_has_its_floor(ran):
    got = ran["latency"]
    assert got.ended.status == 0, got.ended.text
    timed = got.table("latency.parquet")
    assert set(timed["rule"]) == {"lazy"}
    assert timed["checked"].sum() > 0
    assert "byte floor is" not in got.ended.text
    assert ran["latency, wrong"].ended.status == 1
    assert "by the lazy rule it is" in ran["latency, wrong"].ended.text
    named = ran["latency, named"].ended
    assert "the byte floor is that of the token rule: none is known of the named rule" in named.text


def test_replay_foresees_what_it_accepts(ran):
    """Steps of the very texts that were decoded, some 90; their standard deviation is below 5% of that.

    Without log(a) in the cost a third fewer would be expected.
    """
    got = ran["replay"]
    assert got.ended.status == 0, got.ended.text
    points = got.table("points.parquet")
    assert set(points["rule"]) == {"lazy"}
    assert points["steps"].sum() == pytest.approx(points["expected_steps"].sum(), rel=0.18)
    named = ran["replay, named"].ended
    assert named.status == 1
    assert "its rule, named, has no replay" in named.text
    assert "give its Rule a token_cost" in named.text


def test_its_replay_is_reported(ran):
    """What replay_sweep can say without its formulas: by the run's own tables, with a dash for what needs them."""
    got = ran["replay"]
    text = markdown_report(replay_sweep, got.sweep)
    (length,) = got.table("replay.parquet").query("gamma == 3")["acceptance_length"]
    (line,) = [row for row in text.splitlines() if row.startswith("| lazy")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[:4] == ["lazy", "1", "3", f"{length:.3f}"]
    assert cells[-2] == "-"
    assert 0 < float(cells[-1]) <= 1
    assert "not known of rules from outside of this tree" in text
    assert "expectation given the decoded text: they agree" in text
