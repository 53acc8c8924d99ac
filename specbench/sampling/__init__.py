"""From a model's logits to LogitRows: processors, penalties and bans, temperature and truncation, per request."""

from specbench.sampling.categorical import draw, inverse_cdf, sample, streams_of
from specbench.sampling.history import History, Processor
from specbench.sampling.resolved import resolve
from specbench.sampling.rows import RowParams, logit_rows
from specbench.sampling_params import SamplingParams

__all__ = [
    "History",
    "Processor",
    "RowParams",
    "SamplingParams",
    "draw",
    "inverse_cdf",
    "logit_rows",
    "resolve",
    "sample",
    "streams_of",
]
