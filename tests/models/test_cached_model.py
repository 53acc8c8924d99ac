"""The ragged cache against full forward passes: a stale, shifted or lost key shows as a logit that differs."""

import pytest
import torch

from specbench.models import CachedModel

# float32 sums in another order differ by up to 3e-5 on logits of size 10; a wrong key changes them by 0.1 and more.
TOLERANCE = {"rtol": 0, "atol": 2e-4}
PROMPTS = [
    "def mean(values):\n    return sum(values)",
    "import os\nimport sys\n\n\ndef main(argv=None):\n    parser =",
    "x",
]


def started(pair, prompts, capacity=80):
    engine = CachedModel(pair.target, pair.vocab_size, "target")
    ids = [pair.encode(prompt) for prompt in prompts]
    engine.start(ids, capacity)
    return engine, ids


@pytest.mark.parametrize("longest", [80, None])
def test_a_prompt_takes_the_row_of_one_that_ended_and_memory_grows_around_the_others(pair, longest):
    """What the longer text left in its row, NaN among it, must not be seen, and those that stay must lose nothing."""
    engine, _ = started(pair, PROMPTS[:2], capacity=24)
    ids = [pair.encode(prompt) for prompt in PROMPTS]
    engine.extend(torch.tensor([[ids[0][-1], 50], [ids[1][-1], 60]]), torch.tensor([2, 2]))
    with torch.inference_mode():
        for layer in engine._cache.layers:
            layer.values[1] = torch.nan
    engine.reserve(3, 80)
    engine.place([ids[2], ids[0]], [1, 2])
    engine.show(3, longest)
    assert engine._fixed == (longest is None)
    assert engine._longest in (0, 80)
    logits = engine.extend(torch.tensor([[70, 80], [ids[2][-1], 90], [ids[0][-1], 0]]), torch.tensor([2, 2, 1])).logits
    torch.testing.assert_close(logits[0], engine.score([*ids[0], 50, 70, 80])[-2:], **TOLERANCE)
    torch.testing.assert_close(logits[1], engine.score([*ids[2], 90])[-2:], **TOLERANCE)
    torch.testing.assert_close(logits[2, :1], engine.score(ids[0])[-1:], **TOLERANCE)


def test_equal_prompts_share_a_prefill_but_not_a_future(pair):
    engine, ids = started(pair, [PROMPTS[0], PROMPTS[1], PROMPTS[0]])
    last = [ids[b][-1] for b in range(3)]
    engine.extend(torch.tensor([[last[0], 50], [last[1], 60], [last[2], 70]]), torch.tensor([2, 2, 2]))
    logits = engine.extend(torch.tensor([[80], [80], [80]]), torch.tensor([1, 1, 1])).logits
    for b, extra in enumerate((50, 60, 70)):
        torch.testing.assert_close(logits[b], engine.score([*ids[b], extra, 80])[-1:], **TOLERANCE)


def test_a_count_of_zero_leaves_a_request_as_it_was(pair):
    engine, ids = started(pair, PROMPTS[:2])
    engine.extend(torch.tensor([[ids[0][-1], 50], [7, 7]]), torch.tensor([2, 0]))
    logits = engine.extend(torch.tensor([[60], [ids[1][-1]]]), torch.tensor([1, 1])).logits
    torch.testing.assert_close(logits[0], engine.score([*ids[0], 50, 60])[-1:], **TOLERANCE)
    torch.testing.assert_close(logits[1], engine.score(ids[1])[-1:], **TOLERANCE)


def test_a_prompt_of_one_token(pair):
    engine = CachedModel(pair.target, pair.vocab_size, "target")
    engine.start([[0], [0, 5, 6]], 10)
    logits = engine.extend(torch.tensor([[0], [6]]), torch.tensor([1, 1])).logits
    torch.testing.assert_close(logits[0], engine.score([0])[-1:], **TOLERANCE)
