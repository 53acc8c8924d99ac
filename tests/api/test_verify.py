"""The Python API: batches of plain tensors and arrays are verified as they are, and wrong ones are named."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import specbench
from specbench.api.verifiers import FunctionVerifier
from specbench.core.errors import ArgumentError
from specbench.core.types import Verification
from specbench.rules.block.masked import BlockVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import RowParams, logit_rows

COUNTS = [3, 0, 1, 2]
SAMPLING = [
    specbench.SamplingParams(temperature=0.7),
    specbench.SamplingParams(top_k=3),
    specbench.SamplingParams(temperature=0.0),
    specbench.SamplingParams(temperature=1.3, top_p=0.8),
]
SEEDS, POSITIONS = [11, 2**62, 0, 5], [9, 0, 2**31, 4]
PLAIN = ["masked", "naive", "block", "control/sample_match"]


def batch(vocabulary: int = 7) -> dict[str, Any]:
    """Ragged requests, each with parameters of its own."""
    generator = torch.Generator().manual_seed(1)
    n = sum(COUNTS)
    target_logits = 2 * torch.randn(n + len(COUNTS), vocabulary, generator=generator)
    draft_logits = 2 * torch.randn(n, vocabulary, generator=generator)
    params = [SAMPLING[b] for b, count in enumerate(COUNTS) for _ in range(count)]
    q = logit_rows(draft_logits, RowParams.of(params)).probs()
    return {
        "target_logits": target_logits,
        "draft_logits": draft_logits,
        "draft_token_ids": q.multinomial(1, generator=generator)[:, 0],
        "num_draft_tokens": COUNTS,
        "sampling": SAMPLING,
        "seeds": SEEDS,
        "positions": POSITIONS,
    }


def apart(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same batch with an entry a request."""
    return arguments | {
        "target_logits": list(arguments["target_logits"].split([count + 1 for count in COUNTS])),
        "draft_logits": list(arguments["draft_logits"].split(COUNTS)),
        "draft_token_ids": [part.tolist() for part in arguments["draft_token_ids"].split(COUNTS)],
        "num_draft_tokens": None,
    }


@pytest.mark.parametrize("verifier", PLAIN)
@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
def test_a_batch_gives_what_its_requests_give_alone(verifier, one_hot):
    """Catches rows, parameters, seeds or positions that go to another request of a ragged batch."""
    arguments = batch() | ({"draft_logits": None} if one_hot else {})
    together = specbench.verify(**arguments, verifier=verifier)
    lists = apart(batch()) | ({"draft_logits": None} if one_hot else {})
    same = specbench.verify(**lists, verifier=verifier)
    assert torch.equal(together.token_ids, same.token_ids)
    for b, count in enumerate(COUNTS):
        alone = specbench.verify(
            lists["target_logits"][b],
            lists["draft_token_ids"][b],
            None if one_hot else lists["draft_logits"][b],
            num_draft_tokens=[count],
            sampling=SAMPLING[b],
            seeds=[SEEDS[b]],
            positions=POSITIONS[b],
            verifier=verifier,
        )
        assert alone.token_ids[0].tolist() == together.token_ids[b, : count + 1].tolist()
        assert alone.num_accepted[0] == together.num_accepted[b]


def test_a_single_seed_gives_every_request_its_own():
    rows = torch.zeros(64, 2, 1000)
    tokens = specbench.verify(rows[:, :1], [[] for _ in range(64)], seeds=3, positions=0).token_ids[:, 0]
    assert tokens.unique().numel() > 50  # of 64 draws from 1000; one if they shared a seed
    again = specbench.verify(rows[:, :1], [[] for _ in range(64)], seeds=3, positions=0).token_ids[:, 0]
    assert torch.equal(tokens, again)


def test_draft_sampling_is_of_the_draft_alone():
    """At draft temperature 0 q is one-hot at the argmax, so that a drafted token of little p is accepted that often."""
    target = torch.tensor([[1.0, 0.0], [0.0, 0.0]]).expand(4000, 2, 2)
    draft = torch.tensor([[0.0, 0.1]]).expand(4000, 1, 2)
    ids = torch.ones(4000, 1, dtype=torch.int64)
    arguments = {"seeds": 1, "positions": 0}
    cold = specbench.verify(target, ids, draft, draft_sampling=specbench.SamplingParams(0.0), **arguments)
    one_hot = specbench.verify(target, ids, **arguments)
    warm = specbench.verify(target, ids, draft, **arguments)
    assert torch.equal(cold.token_ids, one_hot.token_ids)
    assert warm.num_accepted.sum() > 1.5 * cold.num_accepted.sum()


@pytest.mark.usefixtures("unchecked")
def test_whole_numbers_may_be_lists_arrays_or_tensors_of_any_width():
    expected = specbench.verify(**batch())
    names = ("draft_token_ids", "num_draft_tokens", "seeds", "positions")
    lists = {name: torch.as_tensor(batch()[name]).tolist() for name in names}
    for kind in (list, np.array, torch.tensor, lambda values: list(np.array(values))):
        result = specbench.verify(**batch() | {name: kind(value) for name, value in lists.items()})
        assert torch.equal(result.token_ids, expected.token_ids)
    one = [specbench.verify(**changed(seeds=kind(7), positions=kind(9))) for kind in (int, np.int64)]
    assert torch.equal(one[0].token_ids, one[1].token_ids)
    narrow = batch()["draft_token_ids"].to(torch.int32)
    assert torch.equal(specbench.verify(**changed(draft_token_ids=narrow)).token_ids, expected.token_ids)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_logits_may_be_arrays(dtype):
    """All of them as one array, or one for each request; also an array that is read-only."""
    arguments = batch()
    arguments |= {name: arguments[name].to(dtype) for name in ("target_logits", "draft_logits")}
    expected = specbench.verify(**arguments)
    arrays = arguments | {name: arguments[name].numpy() for name in ("target_logits", "draft_logits")}
    arrays["target_logits"].flags.writeable = False
    lists = apart(arguments)
    lists |= {name: [part.numpy() for part in lists[name]] for name in ("target_logits", "draft_logits")}
    for form in (arrays, lists):
        result = specbench.verify(**form)
        assert torch.equal(result.token_ids, expected.token_ids)


def test_arrays_may_lie_in_memory_in_any_way():
    """In the other byte order, backwards, or in columns."""
    arguments = batch()
    expected = specbench.verify(**arguments)
    for name in ("target_logits", "draft_logits", "draft_token_ids", "seeds"):
        array = torch.as_tensor(arguments[name]).numpy()
        for other in (array.astype(array.dtype.newbyteorder()), array[::-1].copy()[::-1], np.asfortranarray(array)):
            result = specbench.verify(**arguments | {name: other})
            assert torch.equal(result.token_ids, expected.token_ids)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["target_logits", "draft_logits"])
def test_rows_that_look_like_probabilities_are_refused_and_their_logarithms_are_not(name, dtype):
    arguments = batch(vocabulary=300)
    expected = specbench.verify(**arguments | {"sampling": None})
    arguments |= {"sampling": None, name: arguments[name].softmax(dim=1)}
    logarithms = specbench.verify(**arguments | {name: arguments[name].log()})
    assert torch.equal(logarithms.token_ids, expected.token_ids)
    with pytest.raises(ArgumentError, match=rf"^{name}: the rows look like probabilities, .* or the logarithm"):
        specbench.verify(**arguments | {name: arguments[name].to(dtype)})


def test_few_logits_that_are_not_negative_are_no_probabilities():
    target = torch.tensor([[1.0, 0.0], [0.0, 9.0]])
    assert specbench.verify(target, [0], num_draft_tokens=[1], seeds=1, positions=0).num_accepted.shape == (1,)


def test_an_object_verifies_as_its_name_does():
    one, two = (specbench.verify(**batch(), verifier=verifier) for verifier in ("block", BlockVerifier()))
    assert torch.equal(one.token_ids, two.token_ids)


def test_arguments_are_left_as_they_are():
    arguments = batch()
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    specbench.verify(**arguments)
    assert all(torch.equal(arguments[name], value) for name, value in before.items())


def changed(**changes: Any) -> dict[str, Any]:
    return batch() | changes


NAN = torch.full((10, 7), torch.nan)


def returning(change: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]) -> FunctionVerifier:
    """A verifier that changes what a sound one returns."""

    def verify(*arguments: Any) -> Verification:
        sound = MaskedVerifier().verify(*arguments)
        return Verification(*change(sound.token_ids, sound.num_accepted))

    return FunctionVerifier(verify, "own", True)


WRONG = [  # what is wrong, the arguments, and how the message begins
    ("a row too few", changed(target_logits=torch.zeros(9, 7)), "target_logits: 9 rows; 10 needed"),
    ("one dimension", changed(target_logits=torch.zeros(10)), "target_logits: [10]; a tensor or array [rows, V]"),
    ("whole numbers", changed(target_logits=torch.zeros(10, 7, dtype=torch.int64)), "target_logits: torch.int64"),
    ("logits of 8 bits", changed(target_logits=torch.zeros(10, 7, dtype=torch.float8_e5m2)), "target_logits: torch.fl"),
    ("NaN", changed(target_logits=NAN), "target_logits: row 0 holds NaN"),
    ("NaN in drafts", changed(draft_logits=NAN[:6]), "draft_logits: row 0 holds NaN"),
    ("another vocabulary", changed(draft_logits=torch.zeros(6, 8)), "draft_logits: [6, 8] on cpu; [6, 7] on cpu"),
    ("draft rows", changed(draft_logits=torch.zeros(5, 7)), "draft_logits: 5 rows; 6 needed"),
    ("floats as ids", changed(draft_token_ids=torch.zeros(6)), "draft_token_ids: torch.float32 [6]"),
    ("ids beyond", changed(draft_token_ids=[0, 1, 2, 7, 0, 0]), "draft_token_ids[3] = 7 is outside 0 to 6"),
    ("padding as ids", changed(draft_token_ids=[0, 1, -1, 2, 0, 0]), "draft_token_ids[2] = -1 is outside"),
    ("counts missing", changed(num_draft_tokens=None), "num_draft_tokens: missing. Say how many of the 6"),
    ("counts of another sum", changed(num_draft_tokens=[3, 0, 1, 1]), "num_draft_tokens: 5 in all"),
    ("negative counts", changed(num_draft_tokens=[4, -1, 1, 2]), "num_draft_tokens: [4, -1, 1, 2]"),
    ("no requests", changed(num_draft_tokens=[]), "num_draft_tokens: []"),
    ("counts of lists", apart(batch()) | {"num_draft_tokens": [3, 0, 2, 1]}, "num_draft_tokens: [3, 0, 2, 1], but"),
    ("rows of lists", changed(target_logits=list(torch.zeros(4, 3, 7))), "target_logits: [3, 3, 3, 3] rows"),
    ("seeds too few", changed(seeds=[1, 2]), "seeds: 2 for 4 requests"),
    ("negative seed", changed(seeds=[1, -2, 3, 4]), "seeds[1] = -2 is outside"),
    ("a single negative seed", changed(seeds=-1), "seeds: -1 is outside"),
    ("seed beyond 64 bits", changed(seeds=[2**64, 1, 1, 1]), "seeds: no whole numbers of 64 bits in [184467"),
    ("no seeds", changed(seeds=None), "seeds: no whole numbers of 64 bits in None. Give a list, an array or a tensor"),
    ("positions beyond", changed(positions=2**32), "positions[0] = 4294967296 is outside"),
    ("positions of floats", changed(positions=[0.5, 1, 1, 1]), "positions: torch.float32"),
    ("samplings too few", changed(sampling=SAMPLING[:3]), "sampling: 3 for 4 requests"),
    (
        "sampling of another kind",
        changed(sampling=[{"top_k": 3}] * 4),
        "sampling[0]: a dict; give specbench.SamplingParams",
    ),
    (
        "processors",
        changed(sampling=specbench.SamplingParams(processors=(print,))),
        "sampling.processors: needs the text",
    ),
    ("draft sampling alone", changed(draft_logits=None, draft_sampling=SAMPLING[0]), "draft_sampling: given without"),
    ("unknown verifier", changed(verifier="nonsense"), "verifier='nonsense': not one of conf/verifier. Use block"),
    ("above the folder", changed(verifier="../protocol/decode"), "verifier='../protocol/decode': not one of"),
    ("no logits", changed(target_logits=None), "target_logits: a NoneType; give a tensor [rows, V]"),
    ("sparse logits", changed(target_logits=torch.zeros(10, 7).to_sparse()), "target_logits: torch.sparse_coo on cpu"),
    ("logits without values", changed(target_logits=torch.zeros(10, 7, device="meta")), "target_logits: torch.strided"),
    ("one logit", changed(draft_logits=torch.tensor(1.0)), "draft_logits: a Tensor; give a tensor [rows, V]"),
    ("one id", changed(draft_token_ids=3), "draft_token_ids: a int; give token ids, or a sequence"),
    (
        "masked logits",
        changed(target_logits=np.ma.masked_array(np.zeros((10, 7)), mask=True)),
        "target_logits: a masked array; give its values as an array, -inf at tokens",
    ),
    ("texts for ids", changed(draft_token_ids=np.array([["a"]])), "draft_token_ids[0]: no whole numbers"),
    (
        "a number for sampling",
        changed(sampling=0.8),
        "sampling: a float; give specbench.SamplingParams(...), or None",
    ),
    (
        "a mapping for sampling",
        changed(draft_sampling={"top_k": 3}),
        "draft_sampling: a dict; give specbench.SamplingParams",
    ),
    (
        "a token that its draft rules out",
        changed(draft_logits=torch.zeros(6, 7).index_fill(1, batch()["draft_token_ids"][:1], -torch.inf)),
        f"draft_token_ids[0] = {int(batch()['draft_token_ids'][0])} has probability 0 in its draft's distribution",
    ),
    (
        "a verifier that returns nothing",
        changed(verifier=FunctionVerifier(lambda draft, target, streams: None, "own", True)),  # ty: ignore
        "verifier=FunctionVerifier: it returned a NoneType. Return a specbench.core.Verification",
    ),
    (
        "a verifier that returns too few columns",
        changed(verifier=returning(lambda ids, accepted: (ids[:, :2], accepted))),
        "verifier=FunctionVerifier: it returned token_ids [4, 2], expected [4, 4]. Return a",
    ),
    (
        "a verifier that returns another dtype",
        changed(verifier=returning(lambda ids, accepted: (ids, accepted.int()))),
        "verifier=FunctionVerifier: it returned torch.int32 num_accepted, expected torch.int64",
    ),
    (
        "a verifier that emits no token of the vocabulary",
        changed(verifier=returning(lambda ids, accepted: (ids.clamp(max=0) + 7, accepted))),
        "verifier=FunctionVerifier: it returned token_ids from 6 to 7; -1 (padding) to 6 needed",
    ),
    (
        "a verifier that accepts more than was drafted",
        changed(verifier=returning(lambda ids, accepted: (ids, accepted * 0 + 1))),
        "verifier=FunctionVerifier: it returned num_accepted [1, 1, 1, 1] of [3, 0, 1, 2] drafted tokens",
    ),
    ("no verifier", changed(verifier=3.0), "verifier: a float without a method verify"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("arguments", "says"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_argument_is_named(arguments, says):
    with pytest.raises(ArgumentError) as raised:
        specbench.verify(**arguments)
    assert str(raised.value).startswith(says)
