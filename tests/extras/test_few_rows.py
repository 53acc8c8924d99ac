"""Passes over few rows by kernels of ours alone have the logits of transformers' own models."""

import dataclasses

import pytest
import torch

from specbench.decoding.engines.static import StaticEngine
from specbench.extras.compiled import compiling, few_rows
from specbench.kernels import attention_tiles, launch, launch_product, product_tiles
from specbench.models import CachedModel
from tests.decoding.test_engines import logs
from tests.helpers import families
from tests.helpers.kernel_cases import DEVICE
from tests.helpers.toy import toy_decoder, toy_pair, toy_requests
from tests.models.test_cpu_model import NATIVE

pytestmark = pytest.mark.usefixtures("unchecked")


@pytest.fixture
def compiled(monkeypatch):
    """What went through torch.compile, in whose place plain passes run."""
    calls = []

    def noted(function, early, **options):
        return lambda *where, **inputs: (calls.append(inputs), function(*where, **inputs))[1]

    monkeypatch.setattr(compiling, "compile_fixed", noted)
    return calls


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """An interpreted program costs milliseconds, however many outputs and keys it has."""
    if launch.INTERPRETED:
        monkeypatch.setattr(product_tiles, "PROGRAMS_BY_NUMBER", 0)
        monkeypatch.setattr(attention_tiles, "PROGRAMS_OF_FLOAT32", 0)


def cached(name):
    return CachedModel(families.made(name).to(DEVICE), families.VOCABULARY, "target")


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", sorted(NATIVE))
def test_logits_are_those_of_transformers(name, compiled):
    """Ragged requests that are extended and cut back: biases, norms of queries and keys, groups, scaled positions."""
    assert families.apart(name, str(DEVICE), prepare=compiling.compile_model) < 1e-4
    assert compiled == []


def test_other_models_are_left_to_torch_compile(compiled):
    assert {name for name in families.CONFIGS if few_rows.takes(cached(name))} == NATIVE
    assert families.apart("gemma2", str(DEVICE), prepare=compiling.compile_model) < 1e-4
    assert len(compiled) == len(families.STEPS)


@pytest.mark.parametrize(
    ("rows", "n", "options"),
    [(1, launch_product.MOST_ROWS + 1, {}), (26, 5, {}), (2, 2, {"features": ("last",)}), (2, 2, {"ancestors": True})],
)
def test_other_passes_are_left_to_torch_compile(rows, n, options, compiled):
    """More rows than a product takes, hidden states, and trees."""
    model, engine = cached("llama"), cached("llama")
    compiling.compile_model(engine)
    if "ancestors" in options:
        options = {"ancestors": torch.eye(n, dtype=torch.bool, device=DEVICE).expand(rows, n, n)}
    logits = []
    for taken in (model, engine):
        taken.start([[1, 2, 3, 4]] * rows, 256)
        taken.show(rows)
        ids = (torch.arange(rows * n, device=DEVICE) % families.VOCABULARY).view(rows, n)
        logits.append(taken.extend(ids, torch.full((rows,), n, device=DEVICE), **options).logits)
    assert len(compiled) == 1
    torch.testing.assert_close(*logits, rtol=0, atol=1e-4 * float(logits[0].std()))


def test_a_piece_of_a_prompt_is_fed_to_its_row(compiled):
    """The second piece of one of three requests, padded, beside requests that keep what they have."""
    plain, engine = cached("llama"), cached("llama")
    compiling.compile_model(engine)
    first, second = list(range(1, 8)), [token % families.VOCABULARY for token in range(40)]
    row, begun, count = (torch.tensor([number], device=DEVICE) for number in (1, len(first), len(second)))
    for model in (plain, engine):
        model.start([[5, 6, 7], first, [9]], 256)
    plain.feed([second], [1], [len(first)])
    padded = torch.tensor([second + [0] * (64 - len(second))], device=DEVICE)
    engine.feed_fixed(padded, row, begun, count)
    logits = []
    for model in (plain, engine):
        model.show(3)
        ids = torch.tensor([[4], [5], [6]], device=DEVICE)
        logits.append(model.extend(ids, torch.ones(3, dtype=torch.int64, device=DEVICE)).logits)
    assert torch.equal(plain.lengths, engine.lengths)
    torch.testing.assert_close(*logits, rtol=0, atol=1e-4 * float(logits[0].std()))
    assert compiled == []


def test_longer_pieces_of_prompts_are_left_to_pytorch(compiled):
    """Neither are they compiled, which would take half a minute a width."""
    engine = cached("llama")
    compiling.compile_model(engine)
    engine.start([[1, 2]], 256)
    numbers = (torch.tensor([number], device=DEVICE) for number in (0, 2, 3))
    tokens = torch.ones((1, launch_product.MOST_ROWS + 1), dtype=torch.int64, device=DEVICE)
    engine.feed_fixed(tokens, *numbers)
    assert engine.lengths.tolist() == [5]
    assert compiled == []


def test_a_model_in_one_dtype_with_logits_in_another(compiled):
    """As a draft in 16 bits whose logits are float32."""
    model = families.made("llama").to(DEVICE, torch.float16)
    engine = CachedModel(model, families.VOCABULARY - 3, "draft", torch.float32)
    compiling.compile_model(engine)
    engine.start([[1, 2, 3]], 64)
    engine.show(1)
    logits = engine.extend(torch.tensor([[4]], device=DEVICE), torch.tensor([1], device=DEVICE)).logits
    assert (logits.dtype, logits.shape) == (torch.float32, (1, 1, families.VOCABULARY - 3))
    assert compiled == []
    exact = model(torch.tensor([[1, 2, 3, 4]][:1], device=DEVICE)[:, [0, 1, 3]]).logits[0, -1, :-3]
    assert (logits[0, 0] - exact).abs().max() < 0.05 * exact.float().std()


class FewRowsEngine(StaticEngine):
    """Takes steps of fixed shapes, without a graph, in passes as compiled ones take them on a GPU."""

    def _attach(self, components, stopwatch):
        super()._attach(components, stopwatch)
        for model in (components.target, components.drafter.model):
            compiling.compile_model(model)


@pytest.mark.thorough
def test_texts_are_those_of_eager_steps(pair, compiled):
    """Requests of different lengths that end at different steps."""
    toy, requests = toy_pair(pair, "qwen3"), toy_requests((9, 2))
    toy = dataclasses.replace(toy, target=toy.target.to(DEVICE), draft=toy.draft.to(DEVICE))
    eager = logs(toy_decoder(toy).run(requests, 2))
    assert logs(toy_decoder(toy, engine=FewRowsEngine()).run(requests, 2)) == eager
    assert compiled == []
