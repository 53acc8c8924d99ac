"""From a model's logits to LogitRows: processors, penalties, bans, temperature and truncation, for each request."""

from specbench.core.sampling_params import SamplingParams
from specbench.sampling.categorical import draw, inverse_cdf, normalized, reaching, sample, streams_of
from specbench.sampling.history import History, TextCounts
from specbench.sampling.processors import Processor, on_host
from specbench.sampling.resolved import resolve
from specbench.sampling.rows import RowParams, logit_rows, shape, tally

__all__ = [
    "History",
    "Processor",
    "RowParams",
    "SamplingParams",
    "TextCounts",
    "draw",
    "inverse_cdf",
    "logit_rows",
    "normalized",
    "on_host",
    "reaching",
    "resolve",
    "sample",
    "shape",
    "streams_of",
    "tally",
]
