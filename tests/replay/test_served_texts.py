"""An engine made from docs/engine.md alone: does the laboratory find a biased verifier in the texts that it served?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import specbench
from specbench.replay.agreement import agreement
from specbench.replay.imports import read_any
from specbench.replay.plausible import warning
from specbench.replay.renewal import replay
from specbench.replay.trace import Trace
from tests.helpers import cli_cases
from tests.helpers.markov_pair import markov_pair

STOP, GAMMA, MOST = 0, 4, 40
P, Q = markov_pair(24, closeness=0.5, seed=3)
HEADER = cli_cases.HEADER | {"source": "an engine of two tables", "dtype": "float64"}


def drawn(rng: np.random.Generator, weights: np.ndarray) -> int:
    sums = weights.cumsum()
    return int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))


def served(
    rng: np.random.Generator, lenience: float, residual: bool, prefill: bool = False
) -> tuple[list[int], int, int]:
    """A text that begins after token 1, the steps that it took, and the drafted tokens that it kept.

    Args:
        prefill: whether the pass over the prompt emits the first token, so that steps begin at the second.
    """
    text, steps, kept = [1, drawn(rng, P[1])] if prefill else [1], 0, 0
    while len(text) <= MOST and STOP not in text:
        draft = [text[-1]]
        while len(draft) <= min(GAMMA, MOST - len(text)):
            draft.append(drawn(rng, Q[draft[-1]]))
        accepted = 0
        for before, token in pairwise(draft):
            if rng.random() * Q[before, token] >= lenience * P[before, token]:
                break
            accepted += 1
        last = draft[accepted]
        refused = accepted < len(draft) - 1
        weights = np.maximum(P[last] - Q[last], 0) if refused and residual else P[last]
        new = [*draft[1 : accepted + 1], drawn(rng, weights)]
        new = new[: new.index(STOP) + 1] if STOP in new else new
        text += new
        steps, kept = steps + 1, kept + min(accepted, len(new))
    return text[1:], steps, kept


def log_of(path: Path, texts: Sequence[Sequence[int]], first_token: str = "step") -> Path:
    """What the guide asks for: each text with its log-probabilities under both models, as a prompt has them."""
    lines: list[object] = [HEADER | {"first_token": first_token}]
    for number, text in enumerate(texts):
        before = [1, *text[:-1]]
        scores = {name: np.log(table[before, text]).tolist() for name, table in (("target", P), ("draft", Q))}
        logprobs = {f"{name}_logprobs": values for name, values in scores.items()}
        lines.append({"prompt_id": f"r{number}", "token_ids": text, **logprobs, "max_new_tokens": MOST})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def p_value_of(trace: Trace, steps: Sequence[int]) -> float:
    """That of the steps which the engine took for each text of a trace."""
    (replayed,) = replay(trace, "token", [GAMMA])
    columns = {"prompt": trace.prompts, "tokens": trace.lengths, "steps": steps, "expected_steps": replayed.steps}
    p_value = agreement(pd.DataFrame(columns), None).same_text_p
    assert p_value is not None
    return p_value


@pytest.mark.parametrize(
    ("lenience", "residual", "biased"),
    [(1.0, True, False), (1.25, True, True), (1.0, False, True)],
    ids=["sound", "lenient", "target for residual"],
)
def test_a_biased_engine_is_found_by_the_steps_that_it_took(tmp_path, lenience, residual, biased):
    """p-values of the three: 0.6, 1e-11 and 2e-12."""
    rng = np.random.default_rng(8)
    texts, steps, kept = zip(*(served(rng, lenience, residual) for _ in range(400)), strict=True)
    assert {len(text) for text in texts} > {1, MOST}  # some end by the stop token, others by their length
    trace = read_any(log_of(tmp_path / "served.jsonl", texts))
    p_value = p_value_of(trace, steps)
    assert p_value < 1e-6 if biased else p_value > 1e-3
    assert biased or warning(trace) is None
    # A stop token that was drafted adds no token of the target's: 1 + accepted / steps is not the replayed length.
    assert 1 + sum(kept) / sum(steps) > 1.01 * trace.lengths.sum() / sum(steps)


def test_an_engine_whose_first_token_is_the_prefills_is_no_biased_one(tmp_path):
    """Its p-value is 0.9, and 1e-8 if its first tokens are replayed as those of steps."""
    rng = np.random.default_rng(9)
    texts, steps, _ = zip(*(served(rng, 1.0, True, prefill=True) for _ in range(400)), strict=True)
    trace = read_any(log_of(tmp_path / "all.jsonl", texts, "prefill"))
    longer, taken = zip(*((text, count) for text, count in zip(texts, steps, strict=True) if count), strict=True)
    assert len(trace.prompts) == len(longer) < 400  # a text of one token took no step
    assert p_value_of(trace, taken) > 1e-3
    assert p_value_of(read_any(log_of(tmp_path / "longer.jsonl", longer)), taken) < 1e-6
    (replayed,) = specbench.replay(tmp_path / "all.jsonl", "token", [GAMMA])  # as the guide has it: without a warning
    assert len(replayed.steps) == len(longer)
