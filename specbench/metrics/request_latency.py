"""Latencies of single requests: time to first token and time per output token; definitions.py says whose they are."""

from dataclasses import dataclass

import numpy as np

MS = 1000.0  # milliseconds in a second
STATISTICS = ("mean", "p50", "p99")


@dataclass(frozen=True)
class RequestTimes:
    """Times of the same requests in each round; all arrays are [rounds, requests].

    Attributes:
        first_token: seconds from the start of a request until the host has its first token.
        end: seconds from the start of a request until the host has its last token.
        tokens: generated tokens, 1 or more.
    """

    first_token: np.ndarray
    end: np.ndarray
    tokens: np.ndarray


def first_token_ms(times: RequestTimes) -> np.ndarray:
    """Returns the time to first token of each request, the median over rounds, in milliseconds [requests]."""
    return MS * np.median(times.first_token, axis=0)


def output_token_ms(times: RequestTimes) -> np.ndarray:
    """Returns the time per output token after the first, the median over rounds, in milliseconds.

    Requests that generated one token have none and are left out.
    """
    several = (times.tokens > 1).all(axis=0)
    spans = (times.end - times.first_token)[:, several] / (times.tokens[:, several] - 1)
    return MS * np.median(spans, axis=0)


LATENCIES = {"first token - start": first_token_ms, "(end - first token) / (tokens - 1)": output_token_ms}


def statistics(values: np.ndarray) -> dict[str, float | None]:
    """Returns mean, median (p50) and 99th percentile (p99, interpolated linearly); None if there are no values."""
    if not len(values):
        return dict.fromkeys(STATISTICS)
    statistics = (values.mean(), *np.percentile(values, (50, 99)))
    return dict(zip(STATISTICS, map(float, statistics), strict=True))
