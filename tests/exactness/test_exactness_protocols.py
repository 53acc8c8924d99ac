"""The laboratory's protocols: what they leave behind can be written under its schema, drawn and reported."""

import dataclasses
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from analysis.flawed_zoo import sensitivity_table
from specbench.core.errors import ConfigError
from specbench.decoding import Completion, Request
from specbench.exactness import tables
from specbench.exactness.texts.forks import BUG, NEAR_TIE, cause_of
from specbench.exactness.zoo.bonus import ArgmaxBonus, PreviousRowBonus
from specbench.metrics.results import write_rows
from specbench.models import CachedModel, Pair
from specbench.protocols import ModelContext, Outcome, RunContext, greedy_divergence
from specbench.protocols.eprocess import EprocessProtocol
from specbench.protocols.exactness import ExactnessProtocol
from specbench.protocols.greedy_divergence import triage
from specbench.reports.plots import exactness as plots
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import SamplingParams
from tests.helpers.cases import bound

ZOO = (tables.SENSITIVITY, tables.BOUNDS, tables.BIAS)  # what the zoo's report is made of
HOT, GREEDY = SamplingParams(), SamplingParams(temperature=0.0)
SMALL = {"draws": 10_000, "serial_draws": 2000, "row_vocabulary": 0, "false_alarm": 1e-7, "power": 0.99}


def context(verifier, **more) -> RunContext:
    settings = {
        "verifier": verifier, "verifier_name": "mine", "sampling": SamplingParams(), "gamma": 3, "batch_size": 4,
        "seed": 0, "device": torch.device("cpu"), "dtype": torch.float32, "title": "mine", "command": "python",
    }  # fmt: skip
    return RunContext(**{**settings, **more})


@pytest.fixture(scope="module")
def with_models(pair: Pair):
    from specbench.drafters.model import ModelDrafter

    def make(verifier, prompts: int = 4, length: int = 24, sampling: SamplingParams = HOT) -> ModelContext:
        texts = [f"def f{i}(x):\n    return " for i in range(prompts)]
        requests = [Request(f"p{i}", tuple(pair.encode(text)), i, sampling, length) for i, text in enumerate(texts)]
        engine = CachedModel(pair.target, pair.vocab_size, "target")
        return ModelContext(
            **vars(context(verifier, sampling=sampling)) | {"drafter": bound(ModelDrafter(), pair)},
            pair=pair,
            target=engine,
            requests=requests,
        )

    return make


def written(outcome: Outcome, folder) -> dict[str, pd.DataFrame]:
    for name, table in outcome.tables.items():
        write_rows(folder / name, table.rows, table.schema)
    assert all(isinstance(figure, Figure) for figure in outcome.figures.values())
    return {name: pd.read_parquet(folder / name) for name in outcome.tables}


def exactness(**more) -> ExactnessProtocol:
    few = {"calls": 40, "inputs_seed": 2, "use_calls": 50}
    return ExactnessProtocol(**{**SMALL, **few, **more})


def test_the_figure_of_steps_of_which_none_is_expected_often():
    """Slow code, such as an interpreted kernel, lost its certificate to this figure; so did malformed steps alone."""
    draws = {"a": 8, "b": 800, "c": 0}
    few = [{"fixture": name, "draws": number, "prob": 0.5, "share": 0.5} for name, number in draws.items()]
    titles = [axes.get_title(loc="left") for axes in plots.empirical_joint(pd.DataFrame(few), "slow").axes]
    assert titles[:3] == ["a: too few draws", "b", "c: too few draws"]


@pytest.mark.thorough
@pytest.mark.usefixtures("few_enumerated", "unchecked")
def test_exactness_of_a_sound_verifier(tmp_path):
    outcome = exactness().run(context(MaskedVerifier(), gamma=6))
    files = written(outcome, tmp_path)
    certificate = json.loads(outcome.documents["certificate.json"])
    assert certificate["verdict"] == "not rejected"  # so few requests leave more than a lossless verdict allows
    assert certificate["bias"] == []
    assert outcome.failure is None
    assert outcome.headline.endswith("; certificate: certificate.md")
    assert set(outcome.figures) == {"empirical_joint"}
    cells = files[tables.CELLS].groupby("fixture")[["prob", "share"]].sum()
    assert np.allclose(cells, 1)
    strata = files[tables.INPUTS].set_index("stratum")
    assert (strata.loc["as configured", ["calls", "requests"]] == [2, 8]).all()
    assert (strata["differing"] == 0).all()
    census = files[tables.CENSUS]
    assert census.loc[census["property"] == "padded", "calls"].sum() == 40
    assert "40 calls drawn from the input distribution D" in outcome.documents["certificate.md"]


@pytest.mark.usefixtures("few_enumerated", "unchecked")
def test_exactness_of_a_flawed_verifier(tmp_path):
    outcome = exactness().run(context(PreviousRowBonus()))
    certificate = json.loads(outcome.documents["certificate.json"])
    files = written(outcome, tmp_path)
    assert certificate["verdict"] == "not lossless"
    assert outcome.headline.startswith(f"not lossless: TV {certificate['tv_lower_bound']:.1g}"[:18])
    assert outcome.failure is None  # it does not claim to be
    assert set(files[tables.BIAS]["fixture"]) == {row["fixture"] for row in certificate["bias"]}
    assert "## Bias and what it bought" in outcome.documents["certificate.md"]
    assert "## The simplest failing example" in outcome.documents["certificate.md"]


class Claims(PreviousRowBonus):
    lossless = True


class Falls(MaskedVerifier):
    def verify(self, draft, target, streams):
        raise IndexError("out of range")


class AnotherRule(BlockVerifier):
    rule = "token"


@pytest.mark.usefixtures("few_enumerated", "unchecked")
@pytest.mark.parametrize(
    ("verifier", "verdict", "says"),
    [
        (Claims(), "not lossless", "it is declared lossless and is not lossless: TV"),
        (Falls(), "broken", "IndexError: out of range"),
    ],
    ids=["false claim", "broken"],
)
def test_a_verifier_that_is_not_what_it_says_fails_the_job(verifier, verdict, says):
    outcome = exactness().run(context(verifier))
    assert json.loads(outcome.documents["certificate.json"])["verdict"] == verdict
    assert says in outcome.failure


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_the_cause_of_other_tokens_is_named_as_far_as_it_is_known():
    """The block rule is named; the fork has the uniform, and the threshold of the rule that the verifier names."""
    outcome = exactness().run(context(AnotherRule()))
    certificate = json.loads(outcome.documents["certificate.json"])
    assert certificate["verdict"] == "not rejected"
    assert "it names the rule token and emits other tokens" in outcome.failure
    words = certificate["words"]
    (follows,) = [each for each in words if "the tokens are those of" in each]
    assert re.fullmatch(
        r"In all [\d,]+ requests .* are those of the rule 'block', but for rounding\. Name that rule\.", follows
    )
    (fork,) = [each for each in words if each.startswith("The two part first at ")]
    assert re.search(r"seed \d+, position \d+: the .*, uniform 0\.\d+ against threshold 0\.\d+ \(structural\)", fork)
    assert "the token rule [" in fork
    assert not any("rule of its own" in each or "a Rule with its formulas" in each for each in words)


def test_bad_settings_are_named():
    for key, value in (
        ("false_alarm", 2.0), ("draws", 0), ("draws", "many"), ("calls", -1),
        ("suite", "thorough"), ("patience", 3), ("call_seconds", -1), ("stop_when_caught", 1),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"protocol\.{key}={value}"):
            exactness(**{key: value})
    with pytest.raises(ConfigError, match=r"protocol\.tokens"):
        EprocessProtocol(0, 0.01)


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_zoo_rows_make_the_table_and_the_heat_map(tmp_path):
    parts = []
    for name, verifier in (("flawed/bonus", ArgmaxBonus()), ("masked", MaskedVerifier())):
        folder = tmp_path / name.replace("/", "_")
        folder.mkdir()
        outcome = exactness(serial_draws=0).run(context(verifier))
        assert outcome.failure is None
        files = written(outcome, folder)
        parts.append([files[each].assign(verifier=name) for each in ZOO])
    tests, bounds, bias = (pd.concat(frames) for frames in zip(*parts, strict=True))
    table = sensitivity_table(tests, bounds, bias).set_index("verifier")
    assert table.loc["flawed/bonus", "caught by"].endswith(": location")
    assert float(table.loc["flawed/bonus", "true TV"]) == pytest.approx(0.36, abs=0.01)
    assert table.loc["masked", "caught by"] == "-"
    tests["column"] = tests["fixture"] + ": " + tests["test"]
    assert isinstance(plots.sensitivity(tests), Figure)


@pytest.mark.thorough
def test_evidence_from_texts_of_the_pair(with_models, tmp_path):
    """False alarm 1e-6 by Ville's inequality; drawing refused tokens from p is seen in about 3,000 tokens."""
    protocol = EprocessProtocol(300, 1e-6)
    outcome = protocol.run(with_models(MaskedVerifier()))
    certificate = json.loads(outcome.documents["e_certificate.json"])
    assert certificate["verdict"] == "not rejected"
    assert certificate["tokens"] >= 300
    assert (
        len(written(outcome, tmp_path)[tables.EPROCESS]["bet"].unique())
        == len(certificate["log10_e_values_of_bets"]) + 1
    )
    assert json.loads(protocol.run(with_models(ArgmaxBonus())).documents["e_certificate.json"])["log10_e_value"] > 2


def test_greedy_texts_of_the_pair_do_not_part_in_float32(with_models, tmp_path):
    """At temperature 0 the same protocol compares texts; a token drawn from the row before is no near tie."""
    protocol = EprocessProtocol(300, 1e-6)
    outcome = protocol.run(with_models(MaskedVerifier(), sampling=GREEDY))
    assert set(outcome.tables) == {tables.GREEDY}
    rows = written(outcome, tmp_path)[tables.GREEDY]
    assert rows["position"].isna().all()
    assert outcome.headline.startswith("0 of 4 texts part (0.0% to ")
    wrong = protocol.run(with_models(PreviousRowBonus(), sampling=GREEDY))
    assert any(fork.cause == BUG for fork in wrong.tables[tables.GREEDY].rows)
    assert "forks" in wrong.figures


class Banned:
    """Takes a token out."""

    def __init__(self, token: int):
        self.token = token

    def __call__(self, logits, history):
        return logits.index_fill(1, torch.tensor([self.token]), -torch.inf)


def test_forks_are_judged_by_what_the_processors_made_of_the_logits(with_models):
    """The text that has the banned token is wrong, though the model's own logits favour it."""
    made = with_models(MaskedVerifier(), prompts=1)
    logits = made.target.score(made.requests[0].prompt)[-1]
    best, second, *_ = logits.argsort(descending=True).tolist()
    request = dataclasses.replace(made.requests[0], sampling=SamplingParams(0.0, processors=[Banned(best)]))
    fork = triage(made, Completion(request, [second, 1]), Completion(request, [best, 1]))
    assert (fork.position, fork.cause, fork.plain_margin) == (0, BUG, torch.inf)
    assert fork.logit_noise < 1e-3


@pytest.mark.parametrize(("tolerance", "cause"), [(None, NEAR_TIE), (1e-3, NEAR_TIE), (1e-9, BUG)])
def test_a_fork_is_rounding_up_to_the_tolerance(with_models, monkeypatch, tolerance, cause):
    """Two logits that change places by 1e-6, which float32 may move by 8e-6 at this size. The whole text up to there is
    fed as it was decoded, since keys and values in the cache are rounded too."""
    scored = {1: torch.tensor([[1.0, 1.0 - 1e-6, 0.0]]), 4: torch.tensor([[1.0 - 1e-6, 1.0, 0.0]])}
    fed = []

    def logits_along(_, prompts, texts, width):
        fed.append((prompts, [text[:2] for text in texts], width))
        return [torch.cat([torch.zeros(2, 3), scored[width]])]

    monkeypatch.setattr(greedy_divergence, "logits_along", logits_along)
    made = with_models(MaskedVerifier(), prompts=1)
    request = dataclasses.replace(made.requests[0], sampling=GREEDY)
    fork = triage(made, Completion(request, [2, 2, 0, 1]), Completion(request, [2, 2, 1, 1]), tolerance)
    assert fork.cause == cause
    assert fed == [([request.prompt], [[2, 2]], width) for width in (1, made.gamma + 1)]


def test_a_wrong_greedy_token_is_no_near_tie(with_models):
    made = with_models(MaskedVerifier(), prompts=1)
    request = dataclasses.replace(made.requests[0], sampling=GREEDY)
    logits = made.target.score(request.prompt)[-1]
    best, *_, worst = logits.argsort(descending=True).tolist()
    plain, wrong = Completion(request, [best, 1, 2]), Completion(request, [worst, 1, 2])
    fork = triage(made, plain, wrong)
    assert (fork.position, fork.cause) == (0, BUG)
    assert fork.plain_margin == pytest.approx(float(logits[best] - logits[worst]), rel=1e-3)
    cut = triage(made, plain, Completion(request, [best, 1]))
    assert (cut.position, cut.cause) == (2, BUG)
    assert triage(made, plain, plain).position is None
    assert NEAR_TIE != BUG


@pytest.mark.parametrize(
    ("margins", "noise", "cause"),
    [
        ((0.01, -0.02), 0.05, NEAR_TIE),  # each shape has its own winner
        ((0.01, 0.03), 0.02, NEAR_TIE),
        ((0.5, 0.4), 0.02, BUG),  # both scorings agree, and one text does otherwise
        ((12.8, -13.1), 18.6, BUG),  # two passes that do not compute the same thing
    ],
)
def test_a_fork_is_a_near_tie_only_within_rounding(margins, noise, cause):
    assert cause_of(margins, noise, most=0.1) == cause
