"""What the laboratory computes, kept as data: a change that should not move tokens or numbers is held against it.

    python -m tests.helpers.golden_record        # writes golden/*.json anew; say in the commit why they changed

Models run in float64, where no machine's rounding moves a token. ``laws`` and ``replay`` come of made-up tables.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from specbench.benchmark.floor import floor_bytes
from specbench.core.conf import CONF
from specbench.decoding import Request
from specbench.drafters import Drafter
from specbench.drafters.model import ModelDrafter
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.exactness.enumeration.laws import rule_error, rule_lengths
from specbench.exactness.inputs.census import CensusRow
from specbench.exactness.results import Bound, Habit, Row, StratumRow
from specbench.metrics import results
from specbench.metrics.exactness_rows import CellRow, RuleBiasRow, SensitivityRow
from specbench.models import Pair, load_pair
from specbench.replay.renewal import replay
from specbench.replay.survival import survival
from specbench.rules.verifier import Verifier
from specbench.runs.workloads import load_prompts
from specbench.sampling import SamplingParams
from tests.helpers.cases import FIXTURES, decoder, in_float64
from tests.helpers.markov_pair import markov_pair, sampled_texts, trace_of_tokens

FOLDER = Path(__file__).parent / "golden"
SEEDS = (0, 1, 2**40)
EXACTNESS = (
    Bound, CellRow, CensusRow, Habit, Row, RuleBiasRow, SensitivityRow, StratumRow,
)  # fmt: skip
SAMPLERS = ("chat", "greedy", "min_p", "temperature", "top_k", "top_p")
VERIFIERS = ("naive", "masked", "block", "control/sample_match", "control/coupled")
DRAFTERS: dict[str, Drafter] = {"model": ModelDrafter(), "prompt_lookup": PromptLookupDrafter()}


def _verifier(name: str) -> Verifier:
    return instantiate(OmegaConf.load(CONF / "verifier" / f"{name}.yaml"))


def _samplers() -> dict[str, SamplingParams]:
    paths = {name: CONF / "sampler" / f"{name}.yaml" for name in SAMPLERS}
    return {
        name: SamplingParams(**OmegaConf.to_container(OmegaConf.load(path)))  # ty: ignore[invalid-argument-type]
        for name, path in paths.items()
    }


# Every verifier with each drafter, the first samplers with both rules, plain decoding; all at three seeds.
RUNS: dict[str, tuple[str, str, str, int]] = {
    **{f"{verifier}, {drafter}": (verifier, drafter, "", 4) for verifier in VERIFIERS for drafter in DRAFTERS},
    **{
        f"{name}, {sampler}": ("masked" if name == "plain" else name, "model", sampler, 0 if name == "plain" else 3)
        for sampler in SAMPLERS
        for name in ("plain", "masked", "block")
    },
}


def decoded(pair: Pair, name: str) -> Any:
    """Texts and step logs of two prompts at each seed, in one batch, of one of ``RUNS``."""
    verifier_name, drafter, sampler, gamma = RUNS[name]
    sampling = _samplers()[sampler] if sampler else SamplingParams()
    prompts = load_prompts("embedded:embedded.jsonl", 2)
    requests = [
        Request(prompt.name, tuple(pair.encode(prompt.text)), seed, sampling, 14 + 3 * i)
        for seed in SEEDS
        for i, prompt in enumerate(prompts)
    ]
    completions = decoder(pair, gamma, drafter=DRAFTERS[drafter], verifier=_verifier(verifier_name)).run(requests)
    counts = [[[s.num_draft_tokens, s.num_accepted, s.num_emitted] for s in text.steps] for text in completions]
    return [[text.token_ids, steps, text.finished] for text, steps in zip(completions, counts, strict=True)]


def decoding() -> Any:
    """All of ``RUNS`` with the embedded pair in float64."""
    pair = in_float64(load_pair("embedded:target", "embedded:draft", device="cpu"))
    return {name: decoded(pair, name) for name in RUNS}


def laws() -> Any:
    """What the rules' formulas give on every enumerable fixture, and the bytes that they must read."""
    counts, accepted = np.array([4, 4, 2, 0]), np.array([4, 1, 0, 0])
    return {
        "lengths": {f"{rule}, {name}": rule_lengths(rule, fixture).tolist() for rule, name, fixture in _each_rule()},
        "error": {f"{rule}, {name}": rule_error(rule, fixture) for rule, name, fixture in _each_rule()},
        "bytes": {
            f"{rule}, greedy {greedy}, q {has_q}": floor_bytes(
                rule, 1000, 2, counts, accepted, greedy=greedy, draft_probabilities=has_q
            )
            for rule in ("token", "block")
            for greedy in (False, True)
            for has_q in (False, True)
        },
    }


def _each_rule() -> list[tuple[str, str, Any]]:
    return [(rule, name, fixture) for rule in ("token", "block") for name, fixture in FIXTURES.items()]


def replayed() -> Any:
    """Survival of each token and acceptance of every gamma, of a made-up trace."""
    p, q = markov_pair(vocabulary=5, closeness=0.7, seed=3)
    trace = trace_of_tokens(p, q, sampled_texts(p, 4, 12, seed=4).tolist())
    return {
        "survival": {rule: survival(trace, rule, 5).tolist() for rule in ("token", "block", "argmax")},
        "lengths": {
            rule: {
                prediction.gamma: prediction.acceptance_length for prediction in replay(trace, rule, [0, 1, 2, 5, 8])
            }
            for rule in ("token", "block", "argmax")
        },
    }


def columns() -> Any:
    """Every stored table's columns with their types."""
    schemas = {f"results.{name}": value for name, value in vars(results).items() if isinstance(value, pa.Schema)}
    rows = {"STEP": results.StepRow, "EMPIRICAL": results.EmpiricalRow, "TEXT": results.TextRow}
    schemas |= {f"results.{name}_SCHEMA": results.schema_of(row) for name, row in rows.items()}
    schemas |= {f"exactness.{row.__name__}": results.schema_of(row) for row in EXACTNESS}
    return {name: {field.name: str(field.type) for field in schema} for name, schema in sorted(schemas.items())}


PARTS: dict[str, Callable[[], Any]] = {"decoding": decoding, "laws": laws, "replay": replayed, "columns": columns}


def kept(name: str) -> Any:
    """What was written down."""
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def as_read(content: Any) -> Any:
    """A part as it would be read back."""
    return json.loads(json.dumps(content))


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for part in sys.argv[1:] or PARTS:
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in as_read(PARTS[part]()).items()]
        (FOLDER / f"{part}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
