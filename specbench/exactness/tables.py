"""The parquet tables that the laboratory's protocols leave: their names and columns."""

from __future__ import annotations

import pyarrow as pa

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


TESTS_SCHEMA = _schema(
    fixture=_S, test=_S, draws=_I, statistic=_F, dof=_I, p_value=_F, rejected_at=_I, untested=_F,
    detectable=_F, upper_bound=_F, gates=_B,
)  # fmt: skip
BOUNDS_SCHEMA = _schema(
    fixture=_S, method=_S, rule_error=_F, located=_F, boxes=_I, proved=_B, draws=_I, differing=_I, rounding=_I,
    explained=_I, impure=_I, hidden=_F, tv=_F, least=_F,
)  # fmt: skip
REGIMES_SCHEMA = _schema(
    regime=_S, reason=_S, vocabulary=_I, gamma=_I, batch=_I, dtype=_S, sampling=_S, drafts=_S,
    least_logit=_F, largest_logit=_F, requests=_I, differing=_I, rounding=_I, structural=_I, tv=_F,
    along=_F, few=_F, anywhere=_F, refused=_S,
)  # fmt: skip
HABITS_SCHEMA = _schema(name=_S, requests=_I, differing=_I)
CALIBRATION_SCHEMA = _schema(fixture=_S, test=_S, seed=_I, draws=_I, p_value=_F)
CELLS_SCHEMA = _schema(fixture=_S, sequence=_S, prob=_F, share=_F, draws=_I)
BIAS_SCHEMA = _schema(fixture=_S, tv=_F, observed_tv=_F, noise_tv=_F, accepted=_F, token_rule=_F)
SENSITIVITY_SCHEMA = _schema(fixture=_S, test=_S, draws=_I, p_value=_F, rejected_at=_I, needed=_F, gates=_B)
ELSEWHERE_SCHEMA = _schema(test=_S, caught=_B)
COMPARISONS_SCHEMA = _schema(fixture=_S, requests=_I, rounding=_I, structural=_I, another_rule=_I)
DIVERGENCES_SCHEMA = _schema(
    fixture=_S, seed=_I, offset=_I, kind=_S, drafted=pa.list_(_I), first=pa.list_(_I), second=pa.list_(_I), uniform=_F,
    threshold=_F, margin=_F, cause=_S,
)  # fmt: skip
EPROCESS_SCHEMA = _schema(token=_I, bet=_S, log10_value=_F)
GREEDY_SCHEMA = _schema(
    prompt=_S, tokens=_I, position=_I, plain_token=_I, speculative_token=_I, plain_margin=_F, speculative_margin=_F,
    logit_noise=_F, cause=_S,
)  # fmt: skip
