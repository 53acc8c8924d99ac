"""A row of results.parquet says what was used: a condition that a protocol never reads has an empty column.

Every protocol of conf runs once in a context that notes what is read of it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from specbench.core.conf import CONF
from specbench.decoding import Request
from specbench.metrics.results import write_rows
from specbench.metrics.run_row import COLUMNS_OF, RunRow
from specbench.models import Pair
from specbench.protocols import ModelContext, RunContext
from specbench.protocols.record import record
from specbench.protocols.settings import unused
from specbench.sampling import SamplingParams
from tests.helpers.contexts import model_context, run_context
from tests.helpers.made_up_engines import Engine as MadeUpEngine

PROTOCOLS = sorted(path.stem for path in (CONF / "protocol").glob("*.yaml"))
SAMPLING = SamplingParams(temperature=0.9)  # known by its identity: what was made in its place is another object
TINY_COST = {"batches": [1, 2], "gammas": [2], "contexts": [8], "steps": 2, "rounds": 1}
# What makes a protocol quick that is not so by its yaml: its vocabulary and its number of requests in particular.
QUICK: dict[str, dict[str, Any]] = {
    "agreement": {"vocabulary": 50, "draws": 20, "steps": 2},
    "cost": TINY_COST,
    "decode": {"max_rounds": 2, "warmup": 0, "check": {"prefixes": 1, "draws": 4, "batch_size": 4}},
    "exactness": {
        **{"suite": "quick", "draws": 200, "calls": 10, "use_calls": 0, "serial_draws": 0, "row_vocabulary": 0},
        **{"locating_seconds": 0.01, "seconds": 0, "input_seconds": 0, "inputs_seed": 0},
    },
    "judge": {"texts": 8, "prompts": 2, "length": 2, "greedy_length": 2, "rounds": 1},
    "latency": {
        **{"vocabulary": 50, "grid": [{"gamma": [1]}], "rounds": 1, "replays": 3, "host_calls": 1},
        **{"seconds": 0.001, "budget": 0.0},
    },
    "predict": {"gammas": [1, 2], "decoded": [1], "warmup": 0, "cost": TINY_COST},
    "replay": {"gammas": [1, 2], "policies": [], "planned": []},
    "replay_check": {"gammas": [1, 2], "decoded": [1], "warmup": 0},
}
KEYS = {  # of the configuration, by the attribute of a context that holds it
    **{key: key for key in ("gamma", "batch_size", "seed", "dtype", "verifier", "drafter", "engine", "pair", "source")},
    "sampling": "sampler",
    "requests": "workload",
}
read: set[str] = set()


class Noting:
    """Notes which conditions are read."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        own_gamma = name == "gamma" and isinstance(self, Request)  # which is not the run's
        if name in KEYS and not own_gamma and (name != "sampling" or value is SAMPLING):
            read.add(KEYS[name])
        if name == "max_new_tokens":
            read.add(name)
        return value


class NotedRun(Noting, RunContext):
    pass


class NotedModels(Noting, ModelContext):
    pass


class NotedRequest(Noting, Request):
    pass


def context(pair: Pair | None, needs_models: bool) -> RunContext:
    if not needs_models:
        return run_context(NotedRun, sampling=SAMPLING, gamma=2, source=MadeUpEngine())
    assert pair is not None
    prompts = [tuple(pair.encode(text)) for text in ("def add(a, b):\n    return", "import os\nimport", "class A:\n")]
    requests = [NotedRequest(str(i), prompt, i, SAMPLING, 6) for i, prompt in enumerate(prompts)]
    return model_context(pair, NotedModels, sampling=SAMPLING, gamma=2, requests=requests)


def protocol_of(name: str, **changes: Any) -> Any:
    settings = OmegaConf.to_container(OmegaConf.load(CONF / "protocol" / f"{name}.yaml"))
    settings.pop("defaults", None)
    return instantiate({**settings, **QUICK.get(name, {}), **changes}, _convert_="all")


def test_quick_settings_are_of_protocols_that_are_there():
    assert QUICK.keys() <= {*PROTOCOLS}


@pytest.mark.usefixtures("few_enumerated", "unchecked")
@pytest.mark.parametrize("name", PROTOCOLS)
def test_columns_of_what_a_protocol_never_reads_are_empty_and_no_others(name, exact: Pair, tmp_path):
    """Catches a condition that a protocol stops reading, and one declared unused that it reads nevertheless."""
    options = {"trace": str(recorded(exact, tmp_path))} if name == "replay" else {}
    protocol = protocol_of(name, **options)
    noting = context(exact, protocol.needs_models)
    read.clear()
    protocol.run(noting)
    if protocol.needs_models:  # the requests' seeds are made of the run's, and so are the models that are loaded
        read.update(("seed", "dtype", "pair", "parallel"))
    assert set(COLUMNS_OF) - read == set(unused(protocol))


def recorded(pair: Pair, folder: Path) -> Path:
    recording = context(pair, needs_models=True)
    kept = record(recording, recording.requests).table
    write_rows(folder / "trace.parquet", kept.rows, kept.schema)
    return folder / "trace.parquet"


@pytest.mark.usefixtures("few_enumerated", "unchecked")
def test_exactness_without_calls_reads_no_conditions(pair: Pair):
    protocol = protocol_of("exactness", calls=0)
    read.clear()
    outcome = protocol.run(context(pair, needs_models=False))
    assert set(COLUMNS_OF) - read == set(unused(protocol)) - {"gamma", "sampler", "batch_size", "dtype"}
    assert {"gamma", "sampler", "batch_size", "dtype"} <= set(unused(protocol))
    assert {"gamma", "temperature", "sampling", "batch_size", "dtype"} <= set(outcome.measured)
    assert set(outcome.measured.values()) == {None}


def test_a_grid_that_names_every_batch_size_makes_no_use_of_the_run_s():
    assert "batch_size" in unused(protocol_of("latency", grid=[{"batch_size": [1]}, {"gamma": [1], "batch_size": [2]}]))
    assert "batch_size" not in unused(protocol_of("latency", grid=[{"batch_size": [1]}, {"gamma": [1]}]))


def test_columns_of_conditions_are_columns_that_may_be_empty():
    kinds = {field.name: str(field.type) for field in dataclasses.fields(RunRow)}
    named = [column for columns in COLUMNS_OF.values() for column in columns]
    assert len(named) == len(set(named))
    assert [column for column in named if not kinds[column].endswith("| None")] == []
