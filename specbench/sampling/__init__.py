"""From a model's logits to LogitRows: processors, penalties and bans, temperature and truncation, per request."""

from specbench.core.sampling_params import SamplingParams
from specbench.sampling.categorical import draw, inverse_cdf, sample, streams_of
from specbench.sampling.history import History, Processor, on_host
from specbench.sampling.resolved import resolve
from specbench.sampling.rows import RowParams, logit_rows, shape, tally, whole_rows

__all__ = [
    "History",
    "Processor",
    "RowParams",
    "SamplingParams",
    "draw",
    "inverse_cdf",
    "logit_rows",
    "on_host",
    "resolve",
    "sample",
    "shape",
    "streams_of",
    "tally",
    "whole_rows",
]
