"""A step on the device: pure, without reading anything back, with drafts padded or not."""

import copy
import itertools

import pytest
import torch

from specbench.core import arguments
from specbench.core.rng import Stream
from specbench.core.types import PADDING
from specbench.decoding import step
from specbench.decoding.commit import _written
from specbench.drafters.model import ModelDrafter
from specbench.drafters.tree import TreeDrafter
from specbench.models import load_pair
from specbench.rules import batched
from specbench.rules.fused import FusedVerifier
from specbench.rules.token.masked import MaskedVerifier, accepted_mask
from specbench.rules.token.tree import TreeVerifier
from specbench.sampling import RowParams, SamplingParams, inverse_cdf
from specbench.sampling.batch import FAILED, FULL, RUNNING, STOPPED, Batch, known_max
from tests.decoding.test_decoding import make_requests, texts
from tests.helpers.cases import decoder
from tests.helpers.kernel_cases import on_a_gpu
from tests.helpers.no_reading import NoReading
from tests.helpers.toy import TensorLookup


class Unchecked(MaskedVerifier):
    """masked.py without the check of its arguments, which reads them."""

    def verify(self, draft, target, streams):
        num_accepted = accepted_mask(draft, target, streams).sum(dim=1)
        weights = batched.residual(*batched.next_rows(draft, target, num_accepted))
        return batched.assemble(draft, num_accepted, inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0]))


WAYS = {
    "model": {"drafter": ModelDrafter(), "verifier": Unchecked(), "gamma": 3},
    "prompt_lookup": {"drafter": TensorLookup(), "verifier": Unchecked(), "gamma": 3},
    "tree": {"drafter": TreeDrafter([2, 2, 1, 1]), "verifier": TreeVerifier(), "gamma": 4},
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@every_way
@pytest.mark.usefixtures("reading_nothing")
def test_a_step_reads_nothing_back(exact, way, monkeypatch):
    """But for the check of arguments, which is left out if the host may not wait."""
    monkeypatch.setattr(arguments, "_may_wait", lambda device: False)
    speculative = decoder(exact, **way)
    speculative.start(make_requests(exact, 3))
    for _ in range(3):
        before = speculative.engine._batch
        with NoReading():
            speculative.engine._batch, result = step.step(before, speculative.components)
    assert (result.num_emitted > 0).all()
    with pytest.raises(AssertionError, match="_local_scalar_dense"), NoReading():  # it sees what it should
        int(result.num_emitted.max())


ON_A_GPU = {
    f"{name}-{block}": WAYS[name] | {"verifier": FusedVerifier(block=block)}
    for name, block in itertools.product(("model", "prompt_lookup"), (False, True))
} | {"tree": WAYS["tree"]}


@on_a_gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("way", ON_A_GPU.values(), ids=ON_A_GPU)
def test_a_step_waits_for_no_gpu(way):
    """Whatever makes the host wait is an error while the step runs; its texts are those of plain decoding."""
    made = load_pair("embedded:target", "embedded:draft", device="cuda", dtype="float32")
    requests = make_requests(made, 8, SamplingParams(temperature=0.0))
    speculative = decoder(made, **way)
    speculative.start(requests)
    speculative.step()  # compiles the kernels, and keeps a tree's tensors
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        step.step(speculative.engine._batch, speculative.components)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    completions = speculative.run(requests)
    assert texts(completions) == texts(decoder(made, 0).run(requests))


@every_way
def test_a_step_leaves_the_batch_that_it_was_given(exact, way):
    speculative = decoder(exact, **way)
    speculative.start(make_requests(exact, 3))
    before = speculative.engine._batch
    kept = copy.deepcopy(before)
    after, _ = step.step(before, speculative.components)
    for field in ("tokens", "lengths", "limits", "seeds", "finished"):
        assert torch.equal(getattr(before, field), getattr(kept, field)), field
    assert (after.lengths > before.lengths).all()


class Compact(ModelDrafter):
    """Drafts without padding, as a drafter of one's own may make them, of 0 to gamma tokens."""

    def propose(self, batch, limits, streams):
        draft = super().propose(batch, torch.minimum(limits, batch.lengths % 4), streams)
        if draft.max_draft_tokens == 0:
            return draft
        target_rows = draft.rows.select(torch.zeros(len(batch) * (draft.max_draft_tokens + 1), dtype=torch.int64))
        return draft.compact(target_rows)[0]


class Uneven(Compact):
    """The same drafts, padded."""

    def propose(self, batch, limits, streams):
        return ModelDrafter.propose(self, batch, torch.minimum(limits, batch.lengths % 4), streams)


def test_drafts_with_and_without_padding_write_the_same_texts(exact):
    requests = make_requests(exact, 4)
    padded, compact = (decoder(exact, drafter=drafter).run(requests) for drafter in (Uneven(), Compact()))
    assert texts(padded) == texts(compact)
    drafted = {step.num_draft_tokens for completion in padded for step in completion.steps}
    assert {0, 1, 2, 3} <= drafted


def test_behind_a_stop_token_nothing_need_be_left_to_draw():
    """The stop token was accepted, and all tokens are banned behind it, as a processor may have it."""
    texts, stop_ids = torch.zeros(2, 9).long(), torch.tensor([[7, PADDING]] * 2)
    lengths, limits, finished = torch.tensor([3, 3]), torch.tensor([8, 8]), torch.full((2,), RUNNING)
    emitted, accepted = torch.tensor([[5, 7, PADDING], [5, PADDING, PADDING]]), torch.tensor([2, 1])
    _, longer, num_emitted, ended = _written(
        texts, lengths, limits, finished, stop_ids, emitted, accepted, torch.zeros(2).long()
    )
    assert ended.tolist() == [STOPPED, FAILED]
    assert (longer[0], num_emitted[0]) == (5, 2)


def test_a_finished_request_stays_as_it_is():
    """Until its row is freed: nothing is drafted for it, and nothing of it changes."""
    params = RowParams.of([SamplingParams()] * 3)
    finished = torch.tensor([RUNNING, STOPPED, FULL])
    prompts, lengths, limits = torch.tensor([2, 2, 2]), torch.tensor([4, 4, 6]), torch.tensor([6, 6, 6])
    numbers = (prompts, lengths, limits, torch.full((3,), 5), torch.arange(3))
    batch = Batch(torch.zeros(3, 9).long(), *numbers, params, finished, torch.full((3, 1), 9))
    assert batch.free_tokens().tolist() == [1, 0, 0]
    texts = (batch.tokens, lengths, limits, finished, batch.stop_ids)
    emitted, accepted = torch.tensor([[1, 2], [3, -1], [3, -1]]), torch.tensor([1, 0, 0])
    tokens, longer, num_emitted, ended = _written(*texts, emitted, accepted, torch.zeros(3).long())
    assert longer.tolist() == [6, 4, 6]
    assert ended.tolist() == [FULL, STOPPED, FULL]
    assert num_emitted.tolist() == [2, 0, 0]
    assert tokens[0, 4:6].tolist() == [1, 2]
    assert torch.equal(tokens[1:], batch.tokens[1:])
    assert known_max(lengths, 99) == 6
