"""A rule with two verifiers, registered by a module outside of the tree, has what the rules of the tree have."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import specbench
from specbench.analysis import gamma_sweep, verifier_latency
from specbench.core.errors import ArgumentError, ConfigError
from specbench.exactness.trials.judge import CallsToDraw, Judge
from specbench.protocols.replay import rules_of
from specbench.reports import markdown
from specbench.reports.latex import document
from specbench.reports.plots import latency as plots
from specbench.reports.plots.looks import Look, looks
from specbench.rules import RULES, Rule, RuleInfo, SeriesLook, info_of, register, replayable
from specbench.rules.recorded import RECORDED, recall_rules, recorded_rules
from specbench.rules.rule import get_rule, of_this_tree, rule_of
from specbench.runs.paper import paper
from tests.analysis import test_latency_analysis
from tests.api.test_certify import SMALL
from tests.helpers.made_up_rows import gamma_rows, table_of, write_run
from tests.reports.test_looks import dash

MODULE = '''
import math

import numpy as np
import torch

from specbench.core.rng import Stream
from specbench.rules import TOKEN, Rule, SeriesLook, batched, register
from specbench.rules.rule import ReferenceVerifier
from specbench.sampling import inverse_cdf

HALVED = register(
    Rule(
        name="halved",
        title="halved rule",
        guarantee="lossless",
        papers=("half2026",),
        bibtex="""
@misc{half2026,
  author = {Ada Half},
  title  = {Half of it},
  year   = {2026}
}
""",
        thresholds=lambda path: 0.5 * path.ratio.clamp(max=1),
        residual=lambda p, q: p - 0.5 * torch.minimum(p, q),
        token_cost=lambda log_rho: np.maximum(log_rho, 0) - math.log(0.5),
        rows_again=TOKEN.rows_again,
        verifiers={"halved": SeriesLook("indigo", "X"), "halved_fast": SeriesLook("#000000", "*")},
        timing_baseline="halved_fast",
    )
)


class Halved(ReferenceVerifier):
    def __init__(self):
        super().__init__(HALVED)


class Fast:
    rule, lossless = "halved", True

    def verify(self, draft, target, streams):
        p, q = batched.drafted_probs(draft, target)
        u = streams.uniform(Stream.ACCEPT)[draft.request_of_row, batched.offsets(draft)]
        accepted = batched.padded(u < 0.5 * torch.clamp(p / q, max=1), draft, False)
        num_accepted = accepted.cumprod(dim=1).sum(dim=1)
        p, q = batched.next_rows(draft, target, num_accepted)
        weights = p - 0.5 * torch.minimum(p, q)
        return batched.assemble(draft, num_accepted, inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0]))
'''
TIMED = {"halved": ("halved", (190.0, 1300.0)), "halved_fast": ("halved", (13.0, 50.0))}


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The user's module; its rule is registered while these tests run."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "halved.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("halved")
    del RULES["halved"], sys.modules["halved"]


@pytest.fixture
def timed(module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Timings of its verifiers beside those of the tree."""
    monkeypatch.setattr(test_latency_analysis, "TIMES", {**test_latency_analysis.TIMES, **TIMED})
    return test_latency_analysis.write_run(tmp_path / "verifier_latency" / "one")


def gammas(folder: Path) -> Path:
    """A gamma sweep of its two verifiers."""
    rows = gamma_rows()
    names = {"naive": "halved", "masked": "halved_fast"}
    for row in rows:
        object.__setattr__(row, "verifier", names[row.verifier])
    return write_run(folder, rows)


@pytest.mark.thorough
@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_its_formulas_certify_both_verifiers(module: ModuleType) -> None:
    for verifier in (module.Halved(), module.Fast()):
        assert rule_of(verifier) is module.HALVED
        certificate = specbench.certify(verifier, "quick", device="cpu", **SMALL)
        assert certificate.verdict in ("lossless", "not rejected"), certificate.headline
        assert all(bound["rule_error"] < 1e-12 for bound in certificate.bounds)  # None without its formulas
        assert {row["rule_wrong"] for row in certificate.inputs} == {0}


@pytest.mark.thorough
@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_its_declaration_is_not_taken_at_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law of a rule registered elsewhere is checked, on small pairs and on calls of D: here it is biased."""
    biased = Rule(
        name="biased", title="biased rule", guarantee="lossless", thresholds=lambda path: 0.5 * path.ratio.clamp(max=1)
    )
    assert not of_this_tree(biased)
    monkeypatch.setitem(RULES, "biased", biased)
    assert not of_this_tree(biased)
    assert [of_this_tree(get_rule(name)) for name in ("token", "block")] == [True, True]
    none = CallsToDraw(0, torch.device("cpu"), 0)
    assert Judge(biased.reference, none).own_rule
    certificate = specbench.certify(biased.reference, "quick", device="cpu", **SMALL)
    assert certificate.verdict == "not lossless"
    assert not Judge(get_rule("token").reference, none).own_rule


def test_its_second_verifier_is_compared_with_its_timing_baseline(timed: Path) -> None:
    """Two timed verifiers of a third rule were a KeyError."""
    report = verifier_latency.build(timed)
    (shown,) = (table.shown for table in report.tables if table.name == "speed")
    lines = table_of(markdown.table(shown))
    assert lines[1]["halved / halved_fast"].startswith("26.00 [")
    assert lines[1]["masked / fused"].startswith("30.00 [")
    text = markdown.render(report)
    assert "Of other rules: external/vllm_v1;" in text
    assert "halved" in report.rules


def test_figures_have_its_looks_and_its_byte_floor(timed: Path) -> None:
    drawn = looks(["halved", "halved_fast", "masked"])
    assert drawn["halved"] == Look("#332288", "X")
    assert drawn["halved_fast"] == Look("#000000", "*")
    figure = plots.time_against_batch(verifier_latency.read_cases(timed))
    floors = {line.get_label(): dash(line) for line in figure.axes[0].lines if "floor" in line.get_label()}
    assert list(floors) == ["byte floor, token rule", "byte floor, block rule", "byte floor, halved rule"]
    assert len(set(floors.values())) == 3


def test_a_gamma_sweep_compares_its_verifiers_and_names_it(module: ModuleType, tmp_path: Path) -> None:
    report = gamma_sweep.build(gammas(tmp_path))
    assert "halved and halved_fast promise the same tokens from the same streams" in markdown.render(report)
    assert report.rules == ("halved",)


def test_a_paper_cites_its_own_entry(timed: Path, tmp_path: Path) -> None:
    runs, out = [str(gammas(tmp_path / "gamma_sweep" / "one")), str(timed)], tmp_path / "paper"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specbench.reports.latex.folder._pdf", lambda picture, page: b"")
        assert paper([*runs, "--out", str(out)]) == 0
    text = (out / "main.tex").read_text()
    assert r"Verifiers follow the halved rule~\cite{half2026}, the " in text
    assert r"} and the " in text
    refs = (out / "refs.bib").read_text()
    assert refs.count("@misc{half2026,") == 1
    assert "leviathan2023fast" in refs


def test_a_later_process_has_it_from_the_folder_of_the_run(module: ModuleType, timed: Path, tmp_path: Path) -> None:
    """A report that is made without its module was silently without title, citation, looks and comparison."""
    runs = [gammas(tmp_path / "gamma_sweep" / "one"), timed]
    for run in runs:
        (run / "0").mkdir(exist_ok=True)
        (run / "0" / RECORDED).write_text(recorded_rules())
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(RULES, "halved")
        patch.setattr("specbench.reports.latex.folder._pdf", lambda picture, page: b"")
        assert paper([*map(str, runs), "--out", str(tmp_path / "paper")]) == 0
        assert RULES["halved"].recorded
        assert recorded_rules() == ""  # a later run of this process does not record what it has from another
        assert looks(["halved"])["halved"] == Look("#332288", "X")
        assert "halved" not in [info.name for info in replayable()]
        register(module.HALVED)  # the module itself, once it is imported
        assert RULES["halved"] is module.HALVED
        recall_rules(runs[0])
        assert RULES["halved"] is module.HALVED
    assert r"the halved rule~\cite{half2026}" in (tmp_path / "paper" / "main.tex").read_text()
    assert "@misc{half2026," in (tmp_path / "paper" / "refs.bib").read_text()


def test_a_replay_has_the_rule_of_a_verifier_that_is_named() -> None:
    """The command line had no way to replay a rule of one's own, since nothing imported its module."""
    mild = Rule(
        name="mild", title="mild rule", thresholds=lambda path: path.ratio, token_cost=get_rule("token").token_cost
    )
    assert rules_of(mild.reference, "mild") == [*replayable(), mild]
    assert rules_of(None, "masked") == replayable()
    lossy = Rule(name="lossy", title="lossy rule", thresholds=lambda path: path.ratio).reference
    with pytest.raises(ConfigError, match="verifier=mine: .* the lossy rule, which has no token_cost"):
        rules_of(lossy, "mine")


def test_a_recorded_rule_hides_none_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "bare", RuleInfo(name="bare", title="bare rule", recorded=True))
    own = Rule(name="bare", title="my rule", thresholds=lambda path: path.ratio)
    assert get_rule(own) is own
    assert not get_rule("bare").has_law


@pytest.mark.parametrize("content", ["", "[1]", '[{"name": "old"}]', '{"name": "old"}'])
def test_records_of_another_version_are_passed_over(content: str, tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / RECORDED).write_text(content)
    before = dict(RULES)
    recall_rules(tmp_path)
    assert before == RULES


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "token"}, "rule=token: this name is registered for another rule. Give your rule another name"),
        (
            {"verifiers": {"fused": SeriesLook("blue", "o")}},
            "rule=other: verifiers has 'fused', which follows the token rule. Give each verifier to one rule",
        ),
        ({"verifiers": {"tree": SeriesLook("blue", "o")}}, "rule=other: verifiers has 'tree', which follows the token"),
    ],
)
def test_names_of_other_rules_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        register(RuleInfo(**{"name": "other", "title": "other rule", **fields}))
    assert "other" not in RULES


def test_papers_without_entries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "other", RuleInfo(name="other", title="other rule", papers=("absent2026",)))
    with pytest.raises(ArgumentError, match="rule=other: papers has 'absent2026', of which there is no BibTeX entry"):
        document.citation_keys("other")


def test_a_marker_that_figures_do_not_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    info = RuleInfo(name="other", title="other rule", verifiers={"mine": SeriesLook("blue", "8")})
    monkeypatch.setitem(RULES, "other", info)
    with pytest.raises(ArgumentError, match="rule=other: verifiers has the marker '8' for 'mine'. Use one of o s D"):
        looks(["mine"])


def test_a_registered_rule_without_formulas_is_one_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    info = RuleInfo(name="bare", title="bare rule")
    monkeypatch.setitem(RULES, "bare", info)
    assert get_rule("bare") is get_rule(info) is get_rule(get_rule("bare"))
    assert not get_rule("bare").has_law
    assert info_of("bare") is info
    assert isinstance(get_rule("bare"), Rule)
