"""Numbers of a run while it goes on, a JSON object a line in ``progress.jsonl`` of the job's folder.

``tail -f`` shows them, and W&B draws them as curves. A protocol writes a line between two things that it times, never
while a clock runs: a line costs some microseconds.
"""

import json
import math
import time
from pathlib import Path

PROGRESS = "progress.jsonl"
TOGETHER = "together.jsonl"  # of the job that began them: the shared rounds of several jobs (protocols/together.py)

# What is written, and what it is a function of. ``seconds`` stands in every line: since the job's first.
AXES = {
    "requests": "seconds",  # texts decoded
    "tokens": "seconds",  # emitted by speculative steps
    "tokens_per_second": "seconds",  # of speculative decoding alone
    "plain_tokens_per_second": "seconds",
    "acceptance_length": "tokens",  # accepted drafted tokens a step, and one more
    "log10_evidence": "requests",  # of an engine that is judged: of all bets together (exactness/two_sample/bets.py)
    "draws": "seconds",  # steps on each small fixture
    "log10_p_value": "draws",  # the smallest of all tests that can reject
}


class Journal:
    """Writes lines; without a folder it keeps silent."""

    def __init__(self, folder: Path | None = None):
        self._path = None if folder is None else folder / PROGRESS
        self._began: float | None = None

    def note(self, **numbers: float | int | None) -> None:
        """Writes one line, at once. A disk that is full ends the journal, not the run.

        Args:
            numbers: by a name of AXES. What is None or infinite, which JSON cannot hold, is left out.
        """
        if self._path is None:
            return
        now = time.perf_counter()
        self._began = now if self._began is None else self._began
        values = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
        line = json.dumps({"seconds": round(now - self._began, 3), **values})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        except OSError:
            self._path = None
