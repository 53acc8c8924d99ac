"""The parquet tables that protocol=exactness leaves, made of evidence."""

import math
from typing import Any

from specbench.exactness.draws.alpha_spending import last_alarm
from specbench.exactness.enumeration.laws import completed, counted_ends, rule_lengths, target_joint
from specbench.exactness.evidence import Evidence
from specbench.exactness.fixtures.table import all_sequences
from specbench.exactness.inputs.census import CensusRow
from specbench.exactness.results import JOINT, Bound, Habit, Row, StratumRow
from specbench.exactness.settings import Settings
from specbench.exactness.statistics.power import needed_noncentrality
from specbench.metrics.exactness_rows import (
    BIAS,
    BOUNDS,
    CELLS,
    LOCATION,
    SENSITIVITY,
    CellRow,
    RuleBiasRow,
    SensitivityRow,
)
from specbench.rules.agreement import TOLERANCE
from specbench.rules.token.formulas import RULE as TOKEN

TESTS, INPUTS, HABITS = "exactness_tests.parquet", "inputs.parquet", "habits.parquet"
CENSUS = "census.parquet"
SEEN = 1e-4  # p-value from which the draws that a test needs are estimated


def tables_of(evidence: Evidence, settings: Settings) -> dict[str, tuple[list[Any], type]]:
    """Every table by its name: the rows, and their class."""
    return {
        TESTS: (evidence.rows, Row),
        BOUNDS: (evidence.bounds, Bound),
        INPUTS: (evidence.inputs, StratumRow),
        CENSUS: (evidence.census, CensusRow),
        HABITS: (evidence.habits, Habit),
        CELLS: (joint_cells(evidence), CellRow),
        BIAS: (bias_rows(evidence), RuleBiasRow),
        SENSITIVITY: (sensitivity(evidence, settings), SensitivityRow),
    }


def joint_cells(evidence: Evidence) -> list[CellRow]:
    """Shares and probabilities of whole steps of the longest draft, completed with the target, by fixture.

    A fixture of several sets of sampling parameters is shown by the first.
    """
    rows = []
    for name, tally in evidence.tallies.items():
        if not (tally.fixture.whole_prefix and tally.fixture.enumerable):
            continue
        fixture, nodes = tally.by_variant()[0]
        counts = nodes[max(fixture.counts)]
        shares = completed(fixture, counted_ends(fixture, counts)).tolist()
        probs = target_joint(fixture, fixture.gamma + 1).tolist()
        draws = int(counts[0].sum())
        sequences = all_sequences(fixture.vocabulary, fixture.gamma + 1).tolist()
        for sequence, share, prob in zip(sequences, shares, probs, strict=True):
            rows.append(CellRow(name, " ".join(map(str, sequence)), prob, share, draws))
    return rows


def bias_rows(evidence: Evidence) -> list[RuleBiasRow]:
    """Every small fixture that was drawn on and whose steps can be completed to whole prefixes."""
    # What was located is the bias where the code does little else.
    errors = {bound.fixture: bound.located for bound in evidence.bounds if bound.located is not None and bound.least}
    dof = {row.fixture: row.dof for row in evidence.rows if row.test == JOINT}
    rows = []
    for name, tally in evidence.tallies.items():
        if not (tally.fixture.whole_prefix and tally.fixture.enumerable) or tally.fixture.name == "greedy":
            continue
        lengths = rule_lengths(TOKEN, tally.fixture).numpy()
        shares = tally.lengths().sum(axis=1) / tally.lengths().sum()
        token_rule = float(shares @ lengths @ range(lengths.shape[1]))
        noise = 0.4 * (dof.get(name, 0) / tally.draws) ** 0.5  # half the mean of |normal| a cell, E|z| = 0.8
        rows.append(RuleBiasRow(name, errors.get(name), tally.observed_tv(), noise, tally.mean_accepted(), token_rule))
    return rows


def sensitivity(evidence: Evidence, settings: Settings) -> list[SensitivityRow]:
    """The tests, with the draws after which each would catch the verifier with the power asked for.

    What was located comes first, fixture by fixture; it needs as many requests as bring what may hide below it.
    """
    rows = []
    for bound in evidence.bounds:
        if bound.located is None:
            continue
        p_value, rejected_at, needed = 1.0, None, None
        if bound.least > TOLERANCE:
            p_value, rejected_at, needed = 0.0, bound.draws, -math.log(settings.false_alarm) / bound.located
        rows.append(SensitivityRow(bound.fixture, LOCATION, bound.draws, p_value, rejected_at, needed, gates=True))
    for row in evidence.rows:
        needed = _needed(row, settings.power, last_alarm(settings, evidence.rows))
        rows.append(SensitivityRow(row.fixture, row.test, row.draws, row.p_value, row.rejected_at, needed, row.gates))
    return rows


def _needed(row: Row, power: float, false_alarm: float) -> float | None:
    """From the excess of the statistic over its degrees of freedom, which grows with the draws in proportion."""
    if row.dof == 0:
        return float(row.draws) if row.rejected_at is not None else None
    if row.p_value > SEEN or row.statistic <= row.dof:
        return None
    wanted = needed_noncentrality(row.dof, power, false_alarm)
    return row.draws * wanted / (row.statistic - row.dof)
