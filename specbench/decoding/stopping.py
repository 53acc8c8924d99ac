"""Stop strings, which the host finds in the text as it is read. Stop ids are looked for by the step, on the device.

The first stop string that is complete, character by character, ends the text, whatever tokens and blocks its characters
came in. So speculative and plain decoding end at the same place. vLLM's meanings, but for one detail: if one token
completes two stop strings, vLLM takes the one that is named first, and here the one that ends first counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.core.sampling_params import SamplingParams
from specbench.decoding.detokenize import TextStream


@dataclass(frozen=True)
class Found:
    """A stop string that is complete.

    Attributes:
        text: the stop string.
        tokens: of the continuation, the one that completed it included.
        characters: of the continuation that are shown.
    """

    text: str
    tokens: int
    characters: int


class StopSearch:
    """Looks for stop strings in one continuation as it is read.

    Args:
        stream: gives the characters of the tokens.
        sampling: its ``stop``, and what is said of it: within the first ``min_tokens`` tokens no stop string is
            complete, though one may begin there.
    """

    def __init__(self, stream: TextStream, sampling: SamplingParams):
        self._stream, self._sampling = stream, sampling
        self._tokens, self._characters = 0, 0
        self._tail = ""  # the last characters, as many as a stop string may have before its last one
        self._longest = max(map(len, sampling.stop)) - 1

    def feed(self, token_ids: Sequence[int]) -> Found | None:
        """Reads the next tokens; None if no stop string is complete with them. Ask no more after one was found."""
        for token in token_ids:
            new = self._stream.feed([token])
            self._tokens += 1
            text = self._tail + new
            if self._tokens > self._sampling.min_tokens and (found := self._first_in(text)):
                stop, end = found
                first = self._characters - len(self._tail)
                shown = end if self._sampling.include_stop_str_in_output else end - len(stop)
                return Found(stop, self._tokens, first + shown)
            self._characters += len(new)
            self._tail = text[len(text) - self._longest :] if self._longest < len(text) else text
        return None

    def _first_in(self, text: str) -> tuple[str, int] | None:
        """The stop string that ends first among those that end behind the tail, and where; of several that end there
        the one that is named first."""
        ends = []
        for stop in self._sampling.stop:
            place = text.find(stop, max(len(self._tail) - len(stop) + 1, 0))
            if place >= 0:
                ends.append((stop, place + len(stop)))
        return min(ends, key=lambda each: each[1], default=None)
