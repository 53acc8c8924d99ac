"""From a model's logits to LogitRows: processors, temperature, top-k, top-p and min-p, per request."""

from specbench.sampling.categorical import draw, inverse_cdf, sample, streams_of
from specbench.sampling.constraint import Constraint, constrained
from specbench.sampling.history import History, Processor, on_host
from specbench.sampling.rows import RowParams, logit_rows
from specbench.sampling_params import SamplingParams

__all__ = [
    "Constraint",
    "History",
    "Processor",
    "RowParams",
    "SamplingParams",
    "constrained",
    "draw",
    "inverse_cdf",
    "logit_rows",
    "on_host",
    "sample",
    "streams_of",
]
