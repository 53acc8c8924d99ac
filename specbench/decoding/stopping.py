"""Stop strings, which the host finds in the text as it is read. The step finds stop ids, on the device.

The first stop string that is complete, character by character, ends the text, however its characters are spread over
tokens and blocks. So speculative and plain decoding end at the same place. The semantics are vLLM's but for one detail:
if one token completes two stop strings, vLLM takes the first in the list, and here the first to end counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.core.sampling_params import SamplingParams
from specbench.decoding.detokenize import TextStream


@dataclass(frozen=True)
class StopMatch:
    """A complete stop string.

    Attributes:
        tokens: of the continuation, up to the token that completed it.
        hidden: complete characters at the end of the text of these tokens that are not shown.
    """

    text: str
    tokens: int
    hidden: int


class StopSearch:
    """Searches one continuation for stop strings as it is read.

    Args:
        sampling: has ``stop`` and its settings. No stop string counts that is complete within the first ``min_tokens``
            tokens, though it may begin there.
    """

    def __init__(self, stream: TextStream, sampling: SamplingParams):
        self._stream, self._sampling = stream, sampling
        self._tokens = 0
        self._tail = ""  # the last characters, at most the longest stop string's length less one
        self._longest = max(map(len, sampling.stop)) - 1

    def feed(self, token_ids: Sequence[int]) -> StopMatch | None:
        """Reads the next tokens, and returns the stop string that they complete, which ends the search; else None."""
        for token in token_ids:
            new = self._stream.feed([token])
            self._tokens += 1
            text = self._tail + new
            if self._tokens > self._sampling.min_tokens and (match := self._first_in(text)):
                stop, end = match
                shown = end if self._sampling.include_stop_str_in_output else end - len(stop)
                return StopMatch(stop, self._tokens, len(text) - shown)
            self._tail = text[len(text) - self._longest :] if self._longest < len(text) else text
        return None

    def _first_in(self, text: str) -> tuple[str, int] | None:
        """Returns the stop string that ends first behind the tail, and its end; of several, the first in the list."""
        ends = []
        for stop in self._sampling.stop:
            place = text.find(stop, max(len(self._tail) - len(stop) + 1, 0))
            if place >= 0:
                ends.append((stop, place + len(stop)))
        return min(ends, key=lambda match: match[1], default=None)
