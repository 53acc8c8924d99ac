"""From a model's logits to LogitRows: processors, temperature, top-k, top-p and min-p, per request."""

from specbench.sampling.categorical import draw, inverse_cdf, sample, streams_of
from specbench.sampling.history import History, Processor
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
    "sample",
    "streams_of",
]
