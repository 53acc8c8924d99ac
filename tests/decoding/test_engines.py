"""Engines: sizes of steps, rows, errors, and which one is chosen. test_ways.py has the texts that they write."""

import dataclasses

import pytest
import torch

from specbench.core.errors import ConfigError, ModelError
from specbench.core.machine import progress
from specbench.decoding.engines.auto import PAYS_FROM, AutoEngine
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.engine import Requirements, moves
from specbench.decoding.engines.graph import GraphEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.model import ModelDrafter
from specbench.drafters.suffix_lookup import SuffixLookupDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.models import ModelOutput
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.naive import NaiveVerifier
from tests.decoding.test_decoding import make_requests
from tests.helpers.cases import decoder
from tests.helpers.toy import toy_decoder, toy_requests


def logs(completions):
    return [(c.token_ids, c.steps, c.finished) for c in completions]


def test_sizes_of_static_steps_grow_with_the_batch(toy):
    decoding = toy_decoder(toy, engine=StaticEngine())
    decoding.run(toy_requests((3, 4, 5, 6, 7, 8)))
    assert decoding.engine.batch_sizes == (1, 2, 4, 6)


def test_what_is_under_way_is_told_when_asked(pair):
    decoding = decoder(pair, engine=StaticEngine())
    completion = decoding.start(make_requests(pair, 1))[0]
    decoding.step()
    assert not completion.token_ids
    decoding.flush()
    assert len(completion.steps) == 1
    assert completion.token_ids
    decoding.step()
    decoding.start(make_requests(pair, 1))  # forgets the step under way too
    assert len(completion.steps) == 1


@pytest.mark.parametrize("name", ["target model", "drafter"])
@pytest.mark.parametrize("engine", [EagerEngine(), StaticEngine()], ids=["eager", "static"])
def test_nan_is_named_although_the_next_step_is_under_way(pair, engine, name, monkeypatch):
    requests = make_requests(pair, 3, max_new_tokens=24)
    broken = decoder(pair, engine=engine, stop_ids=frozenset())
    model = broken.components.target if name == "target model" else broken.components.drafter.model
    extend, calls = model.extend, []

    def failing(token_ids, counts, **others):
        logits = extend(token_ids, counts, **others).logits
        calls.append(1)
        if len(calls) == 7:
            logits = logits.clone()
            logits[1, :, 9] = torch.nan
        return ModelOutput(logits, {})

    monkeypatch.setattr(model, "extend", failing)
    step = 6 if name == "target model" else 2  # the 7th call of either
    with pytest.raises(ModelError, match=rf"{name} returned NaN .* prompt '{requests[1].name}' at step {step}\."):
        broken.run(requests)


def test_a_finished_request_moves_no_lengths_of_its_own(exact):
    """A row stays in the batch after its request has ended: nothing may grow there, step after step."""
    requests = make_requests(exact, 2)
    decoding = decoder(exact, engine=StaticEngine([2]), stop_ids=frozenset())
    decoding.run([dataclasses.replace(requests[i], max_new_tokens=most) for i, most in enumerate((2, 60))])
    lengths = decoding.components.target.lengths.tolist()
    assert lengths[0] <= len(requests[0].prompt) + 2


def test_what_cannot_be_captured_is_refused_by_name(pair):
    with pytest.raises(ConfigError, match=r"engine=graph.*device is cpu.*engine=auto"):
        decoder(pair, 0, engine=GraphEngine())
    with pytest.raises(ConfigError, match=r"engine\.batch_sizes=\[1, 2\]: no place for 3 requests.*batch_size to 2"):
        decoder(pair, engine=StaticEngine([2, 1])).run(make_requests(pair, 3))
    for wrong in ("all", [0], [1.5], 4):
        with pytest.raises(ConfigError, match=r"engine\.batch_sizes"):
            StaticEngine(wrong)
    gpu = torch.device("cuda")
    with pytest.raises(ConfigError, match=r"engine=graph: verifier=naive has to read .*engine=eager"):
        GraphEngine().resolve(Requirements(gpu, ModelDrafter(), NaiveVerifier()))
    assert AutoEngine().resolve(Requirements(gpu, ModelDrafter(), NaiveVerifier())).name == "eager"
    assert AutoEngine().resolve(Requirements(gpu, None, MaskedVerifier())).name == "graph"


def test_auto_is_eager_without_a_gpu(pair):
    assert decoder(pair, engine=AutoEngine()).engine.name == "eager"


def test_auto_compiles_on_a_cpu_where_that_pays(capsys, monkeypatch):
    """For a sweep of many tokens, of one request at a time, if a compiler is there."""
    progress.say_once.cache_clear()
    cpu, pair = torch.device("cpu"), (ModelDrafter(), NaiveVerifier())
    enough = PAYS_FROM
    assert AutoEngine(9).resolve(Requirements(cpu, *pair, tokens=enough)).name == "compiled"
    assert AutoEngine(9).resolve(Requirements(cpu, *pair, tokens=enough)).prompt_chunk == 9
    assert AutoEngine().resolve(Requirements(cpu, None, None, tokens=enough)).name == "compiled"
    assert capsys.readouterr().err.count("engine=auto is compiled here: up to 10,000 tokens") == 1  # of three jobs
    assert AutoEngine().resolve(Requirements(cpu, *pair, tokens=enough - 1)).name == "eager"
    assert AutoEngine().resolve(Requirements(cpu, *pair, batch_size=2, tokens=enough)).name == "eager"
    for drafter in (TreeDrafter([2]), SuffixLookupDrafter()):
        assert AutoEngine().resolve(Requirements(cpu, drafter, NaiveVerifier(), tokens=enough)).name == "compiled"
    assert not capsys.readouterr().err
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert AutoEngine().resolve(Requirements(cpu, *pair, tokens=enough)).name == "eager"
    assert "engine=auto is eager here: engine=compiled: CXX=no-such-compiler" in capsys.readouterr().err


def test_rows_are_filled_from_behind():
    assert moves([0, 3, 5]) == {3: 1, 5: 2}
    assert moves([0, 1, 2]) == {}
    assert moves([4]) == {4: 0}
