"""The parquet tables that the laboratory's protocols leave: their names and columns."""

from __future__ import annotations

from dataclasses import dataclass

from specbench.exactness.certificate.bias import RuleBiasRow
from specbench.exactness.differential import ComparisonRow, Divergence
from specbench.exactness.evidence import Bound, Habit, Row, StratumRow
from specbench.exactness.inputs.census import CensusRow
from specbench.exactness.zoo.sensitivity import SensitivityRow
from specbench.metrics.results import schema_of

TESTS, BOUNDS, INPUTS, HABITS, CELLS, BIAS = (
    "exactness_tests.parquet",
    "bounds.parquet",
    "inputs.parquet",
    "habits.parquet",
    "joint_cells.parquet",
    "bias.parquet",
)
CENSUS = "census.parquet"
SENSITIVITY = "sensitivity.parquet"
DIVERGENCES, COMPARISONS = "divergences.parquet", "comparisons.parquet"


@dataclass(frozen=True)
class CellRow:
    """A whole step of the longest draft on a small fixture: the target's probability of it, and its share of draws."""

    fixture: str
    sequence: str
    prob: float
    share: float
    draws: int


TESTS_SCHEMA = schema_of(Row)
BOUNDS_SCHEMA = schema_of(Bound)
INPUTS_SCHEMA = schema_of(StratumRow)
CENSUS_SCHEMA = schema_of(CensusRow)
HABITS_SCHEMA = schema_of(Habit)
CELLS_SCHEMA = schema_of(CellRow)
BIAS_SCHEMA = schema_of(RuleBiasRow)
SENSITIVITY_SCHEMA = schema_of(SensitivityRow)
DIVERGENCES_SCHEMA = schema_of(Divergence)
COMPARISONS_SCHEMA = schema_of(ComparisonRow)
