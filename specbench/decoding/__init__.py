"""The decode loop: requests in, texts and step logs out. ``step.py`` is one step, ``engines`` take steps, and
``decoder.py`` is the loop around them."""

from specbench.decoding.decoder import Decoder, check_fit
from specbench.decoding.engines import DecodingEngine, EagerEngine
from specbench.decoding.logprobs import logits_along, rows_along
from specbench.decoding.requests import Completion, Request, Step

__all__ = [
    "Completion",
    "Decoder",
    "DecodingEngine",
    "EagerEngine",
    "Request",
    "Step",
    "check_fit",
    "logits_along",
    "rows_along",
]
