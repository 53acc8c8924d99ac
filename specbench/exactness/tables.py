"""The parquet tables that the laboratory's protocols leave: their names and columns."""

from __future__ import annotations

import pyarrow as pa

from specbench.exactness.bias import BiasRow
from specbench.exactness.differential import ComparisonRow, Divergence
from specbench.exactness.evidence import Bound, Habit, RegimeRow, Row
from specbench.exactness.statistics.calibration import PValue
from specbench.exactness.texts.forks import Fork
from specbench.results import schema_of

TESTS, BOUNDS, REGIMES, HABITS, CALIBRATION, CELLS, BIAS = (
    "exactness_tests.parquet",
    "bounds.parquet",
    "regimes.parquet",
    "habits.parquet",
    "calibration.parquet",
    "joint_cells.parquet",
    "bias.parquet",
)
SENSITIVITY, ELSEWHERE = "sensitivity.parquet", "elsewhere.parquet"
DIVERGENCES, COMPARISONS = "divergences.parquet", "comparisons.parquet"
EPROCESS, GREEDY = "eprocess.parquet", "greedy_divergence.parquet"

_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


TESTS_SCHEMA = schema_of(Row)
BOUNDS_SCHEMA = schema_of(Bound)
REGIMES_SCHEMA = schema_of(RegimeRow)
HABITS_SCHEMA = schema_of(Habit)
CALIBRATION_SCHEMA = schema_of(PValue)
BIAS_SCHEMA = schema_of(BiasRow)
DIVERGENCES_SCHEMA = schema_of(Divergence)
CELLS_SCHEMA = _schema(fixture=_S, sequence=_S, prob=_F, share=_F, draws=_I)
SENSITIVITY_SCHEMA = _schema(fixture=_S, test=_S, draws=_I, p_value=_F, rejected_at=_I, needed=_F, gates=_B)
ELSEWHERE_SCHEMA = _schema(test=_S, caught=_B)
COMPARISONS_SCHEMA = schema_of(ComparisonRow)
EPROCESS_SCHEMA = _schema(token=_I, bet=_S, log10_value=_F)
GREEDY_SCHEMA = schema_of(Fork)
