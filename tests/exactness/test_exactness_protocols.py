"""The laboratory's protocols: what they leave behind can be written under its schema, drawn and reported."""

import dataclasses
import itertools
import json
import re

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from specbench.analysis.flawed_zoo import sensitivity_table
from specbench.api.verifiers import FunctionVerifier
from specbench.core.errors import ConfigError
from specbench.exactness import tables
from specbench.exactness.settings import SUITES
from specbench.exactness.zoo.residual import ArgmaxBonus, PreviousRowBonus
from specbench.metrics.exactness_rows import BIAS, BOUNDS, CELLS, SENSITIVITY
from specbench.metrics.results import write_rows
from specbench.protocols import Outcome, RunContext
from specbench.protocols.exactness import ExactnessProtocol
from specbench.reports.plots import exactness as plots
from specbench.rules import Rule
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.rule import ReferenceVerifier
from specbench.rules.token.masked import MaskedVerifier
from tests.helpers.command_lines import ROOT
from tests.helpers.contexts import run_context
from tests.helpers.made_up_verifiers import changed

ZOO = (SENSITIVITY, BOUNDS, BIAS)  # what the zoo's report is made of
SMALL = {"draws": 10_000, "serial_draws": 2000, "false_alarm": 1e-7, "power": 0.99}


def context(verifier, **more) -> RunContext:
    return run_context(**{"verifier": verifier, "verifier_name": "mine", "batch_size": 4, **more})


def written(outcome: Outcome, folder) -> dict[str, pd.DataFrame]:
    for name, table in outcome.tables.items():
        write_rows(folder / name, table.rows, table.schema)
    assert all(isinstance(figure, Figure) for figure in outcome.figures.values())
    return {name: pd.read_parquet(folder / name) for name in outcome.tables}


def exactness(**more) -> ExactnessProtocol:
    few = {"calls": 40, "inputs_seed": 2, "use_calls": 50}
    return ExactnessProtocol(**{**SMALL, **few, **more})


def lenient(factor: float) -> Rule:
    """Accepts ``factor`` times as often."""
    accept = {"thresholds": lambda path: (factor * path.ratio).clamp(max=1)}
    return Rule(name="lenient", title="lenient rule", guarantee="lossy", **accept)


@pytest.mark.usefixtures("few_enumerated", "unchecked")
@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_a_lossy_verifier_is_held_to_its_rule(factor):
    """One that follows another rule than the lossy one that it names was passed over with exit status 0."""
    verifier = FunctionVerifier(ReferenceVerifier(lenient(factor)).verify, lenient(1.5), lossless=False)
    outcome = exactness(suite="quick", calls=0, use_calls=0).run(context(verifier))
    assert outcome.headline.startswith("not lossless: TV")
    page = outcome.documents["certificate.md"]
    if factor == 1.5:
        assert outcome.failure is None
        assert "- It follows its lossy rule: no request" in page
    else:
        assert outcome.failure.startswith("it does not follow the rule lenient that it names: not lossless")
        assert "- It does not follow its lossy rule." in page


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
    cells = files[CELLS].groupby("fixture")[["prob", "share"]].sum()
    assert np.allclose(cells, 1)
    strata = files[tables.INPUTS].set_index("stratum")
    assert (strata.loc["as configured", ["calls", "requests"]] == [2, 8]).all()
    assert (strata["differing"] == 0).all()
    census = files[tables.CENSUS]
    assert census.loc[census["property"] == "padding", "calls"].sum() == 40
    assert "40 calls drawn from the input distribution D" in outcome.documents["certificate.md"]


@pytest.mark.usefixtures("few_enumerated", "unchecked")
def test_exactness_of_a_flawed_verifier(tmp_path):
    outcome = exactness().run(context(PreviousRowBonus()))
    certificate = json.loads(outcome.documents["certificate.json"])
    files = written(outcome, tmp_path)
    assert certificate["verdict"] == "not lossless"
    assert outcome.headline.startswith(f"not lossless: TV {certificate['tv_lower_bound']:.1g}"[:18])
    assert outcome.failure is None  # it does not claim to be
    assert set(files[BIAS]["fixture"]) == {row["fixture"] for row in certificate["bias"]}
    assert "## Bias and what it bought" in outcome.documents["certificate.md"]
    assert "## The simplest failing example" in outcome.documents["certificate.md"]


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_the_cause_of_other_tokens_is_named_as_far_as_it_is_known():
    """The block rule is named; the example has the thresholds and the tokens of the rule that the verifier names."""
    outcome = exactness().run(context(changed(BlockVerifier, rule="token")))
    certificate = json.loads(outcome.documents["certificate.json"])
    assert certificate["verdict"] == "not rejected"
    assert "it names the rule token and emits other tokens" in outcome.failure
    other = "not rejected, but its tokens are not those of the rule that it names"
    assert certificate["headline"].startswith(other)
    page, words = outcome.documents["certificate.md"], certificate["words"]
    assert "Name the rule 'block'." in certificate["failure"]["cause"]
    assert re.search(r"accept uniform 0\.\d+, threshold [01]", page)
    assert re.search(r"^    by the token rule: \[", page, re.MULTILINE)
    assert "The simplest failing example names the likely cause." in words
    assert not any("rule of its own" in sentence or "a Rule with its formulas" in sentence for sentence in words)


@pytest.mark.usefixtures("unchecked")  # of which a suite that is no name would be refused first
def test_bad_settings_are_named():
    for key, value in (("draws", 2.5), ("patience", 3), ("inputs_seed", -1)):
        with pytest.raises(ConfigError, match=rf"protocol\.{key}={value}"):
            exactness(**{key: value})
    for suite in ("thorough", {"draws": 5}):
        with pytest.raises(ConfigError, match=rf"protocol\.suite={suite}.*quick, default, deep"):
            exactness(suite=suite)
    assert exactness(suite="quick", draws=7, seconds=None).settings == dataclasses.replace(
        SUITES["quick"], **SMALL | {"draws": 7, "calls": 40, "use_calls": 50}
    )


def test_the_guide_has_the_time_limits_of_the_quick_suite():
    quick = SUITES["quick"]
    limits = (quick.locating_seconds, quick.serial_seconds, quick.seconds, quick.input_seconds, quick.use_seconds)
    guide = (ROOT / "docs/certificates.md").read_text()
    assert f"The limits of the quick suite add up to {sum(limits):,} seconds" in guide


@pytest.mark.usefixtures("few_enumerated", "unchecked", "little_effort")
def test_zoo_rows_make_the_table_and_the_heat_map(tmp_path):
    parts = []
    for name, verifier in (("flawed/bonus", ArgmaxBonus()), ("masked", MaskedVerifier())):
        folder = tmp_path / name.replace("/", "_")
        folder.mkdir()
        outcome = exactness(serial_draws=0).run(context(verifier))
        assert outcome.failure is None
        files = written(outcome, folder)
        parts.append([files[file_name].assign(verifier=name) for file_name in ZOO])
    tests, bounds, bias = (pd.concat(frames) for frames in zip(*parts, strict=True))
    table = sensitivity_table(tests, bounds, bias).set_index("verifier")
    assert table.loc["flawed/bonus", "caught by"].endswith(": location")
    assert float(table.loc["flawed/bonus", "true TV"]) == pytest.approx(0.36, abs=0.01)
    assert table.loc["masked", "caught by"] == "-"
    tests["column"] = tests["fixture"] + ": " + tests["test"]
    assert isinstance(plots.sensitivity(tests), Figure)


def test_tests_of_the_heat_map_have_names_that_do_not_overlap():
    tests = [{"verifier": "bug", "column": f"processed: acceptance {i}", "needed": 100.0} for i in range(102)]
    figure = plots.sensitivity(tests)
    figure.draw_without_rendering()
    boxes = [name.get_window_extent() for name in figure.axes[0].get_xticklabels()]
    assert len(boxes) == 102
    assert all(box.x1 <= after.x0 for box, after in itertools.pairwise(boxes))
