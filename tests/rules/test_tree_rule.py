"""Trees are verified without bias: by the rule's formulas and the code's thresholds, on all trees of a fixture."""

import dataclasses
import inspect
from itertools import pairwise

import pytest
import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft
from specbench.rules.rule import get_rule
from specbench.rules.token import tree as tree_module
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.rules.token.tree_naive import NaiveTreeVerifier
from specbench.sampling import SamplingParams, reaching
from tests.helpers.cases import FIXTURES, ragged_case
from tests.helpers.tree_enumeration import all_siblings, code_error, independently, most_likely, without_replacement
from tests.rules.test_verifiers import scattered

TOKEN = get_rule("token")


# --- The code ---


def test_siblings_without_replacement_differ_and_are_as_likely_as_they_should_be():
    q = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    every = {siblings.tokens: siblings.weight for siblings in all_siblings(q, 2, without_replacement)}
    assert len(every) == 6
    assert every[0, 1] == pytest.approx(0.5 * 0.3 / 0.5)
    assert every[2, 0] == pytest.approx(0.2 * 0.5 / 0.8)
    assert sum(every.values()) == pytest.approx(1)
    assert {siblings.tokens for siblings in all_siblings(q, 2, most_likely)} == {(0, 1)}
    one = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert {siblings.tokens for siblings in all_siblings(one, 3, without_replacement)} == {(1, 1, 1)}  # begins again


CODE = [
    *((TreeVerifier(), name, branches, without_replacement) for name, branches in {
        "chain": [2, 2], "zeros": [3, 1], "deep": [2, 1, 1], "ties": [2, 2], "steep": [2, 1], "greedy": [2, 2],
    }.items()),
    *((TreeVerifier(), "chain", [2, 1], drawing) for drawing in (independently, most_likely)),
    *((TreeVerifier(), "zeros", [2, 1], drawing) for drawing in (independently, most_likely)),
    (NaiveTreeVerifier(), "chain", [2, 1], without_replacement),
]  # fmt: skip


@pytest.mark.parametrize(("verifier", "name", "branches", "drawing"), CODE)
def test_the_code_is_lossless(verifier, name, branches, drawing):
    assert code_error(verifier, TOKEN, FIXTURES[name], branches, drawing) < 1e-12


BUGS = {
    "siblings are tried against all of p": (
        "refused[:, None], rest, left)", "refused[:, None], left, left)"
    ),
    "what is left is not normalised": ("torch.where(refused, rest.sum(dim=1), mass)", "mass"),
    "q is not normalised without the refused sibling": ("draft.rows.select(row)", "draft.rows.select(row - i % 2)"),
    "the residual is that of all of p": ("residual(left,", "residual(target.select(first_target).probs(),"),
    "the bonus is from the parent's row": ("first_target + i + 1", "first_target + parents[:, i] + 1"),
    "the bonus is from the next token's row": ("first_target + i + 1", "first_target + i + 2"),
    "children of a refused token are tried": ("(parents[:, i] == at)", "(parents[:, i] >= at)"),
    "siblings share a uniform": ("u[:, i] *", "u[:, i - i % 2] *"),
    "a child that is refused ends the walk": ("tried & ~passes", "tried & ~passes & (i > 0)"),
}  # fmt: skip


@pytest.mark.cases(5)
@pytest.mark.parametrize("bug", BUGS.values(), ids=BUGS.keys())
def test_bugs_of_verifiers_of_trees_are_found_out(bug):
    """Each is a change of the code that is tested above; the text has three children, tokens 0 to 2."""
    right, wrong = bug
    source = inspect.getsource(tree_module)
    assert source.count(right) == 1
    names: dict[str, object] = {"__name__": tree_module.__name__}
    exec(source.replace(right, wrong), names)
    assert code_error(names["TreeVerifier"](), TOKEN, FIXTURES["zeros"], [3, 1], without_replacement) > 1e-3


# --- Other inputs of the code ---


def random_trees(counts, seed=0, one_hot=False, params=None):
    """Ragged trees of any shape: each token follows the text, or any token before it."""
    generator = torch.Generator().manual_seed(seed)
    draft, target, streams = ragged_case(counts, 23, one_hot=one_hot, seed=seed, params=params)
    places = (i for n in counts for i in range(n))
    parents = [int(torch.randint(-1, i, (), generator=generator)) if i else -1 for i in places]
    return dataclasses.replace(draft, parents=torch.tensor(parents), depth=max(counts)), target, streams


@pytest.mark.parametrize("one_hot", [False, True], ids=["sampled", "one-hot"])
@pytest.mark.parametrize("counts", [[5, 0, 9, 1], [7] * 8, [0, 0], [12]], ids=repr)
def test_code_and_reference_emit_the_same_tokens_and_paths(counts, one_hot):
    """Trees of any shape, sampling parameters that differ in a batch; and a path is a path of the tree."""
    for seed in range(6):
        if not sum(counts):
            draft, target, streams = ragged_case(counts, 23, seed=seed)
            draft = dataclasses.replace(draft, parents=draft.token_ids, depth=0)
        else:
            draft, target, streams = random_trees(counts, seed=seed, one_hot=one_hot)
        first, second = (verifier.verify(draft, target, streams) for verifier in (TreeVerifier(), NaiveTreeVerifier()))
        assert torch.equal(first.token_ids, second.token_ids)
        assert torch.equal(first.num_accepted, second.num_accepted)
        assert torch.equal(first.path, second.path)
        for b, path in enumerate(first.path.tolist()):
            walked = [-1, *path[: int(first.num_accepted[b])]]
            first_row = int(draft.first_row[b])
            for before, token in pairwise(walked):
                assert int(draft.parents[first_row + token]) == before
            assert path[len(walked) - 1 :] == [PADDING] * (draft.depth - len(walked) + 1)
            tokens = [int(draft.token_ids[first_row + token]) for token in walked[1:]]
            assert first.token_ids[b, : len(tokens)].tolist() == tokens


def test_a_chain_and_the_tree_without_branches_are_the_same():
    """And both are what the token rule emits, bit for bit."""
    draft, target, streams = ragged_case([4, 0, 2, 7, 1], 23)
    expected = MaskedVerifier().verify(draft, target, streams)
    places = torch.arange(len(draft.token_ids)) - draft.first_row[draft.request_of_row]
    tree = dataclasses.replace(draft, parents=places - 1, depth=7)
    for verifier in (TreeVerifier(), NaiveTreeVerifier()):
        chain, unbranched = verifier.verify(draft, target, streams), verifier.verify(tree, target, streams)
        assert torch.equal(chain.token_ids, expected.token_ids)
        assert torch.equal(unbranched.token_ids, expected.token_ids)
        assert chain.path is None
        for path, accepted in zip(unbranched.path.tolist(), expected.num_accepted.tolist(), strict=True):
            assert path[:accepted] == list(range(accepted))


@pytest.mark.parametrize("verifier", [TreeVerifier(), NaiveTreeVerifier()], ids=["batched", "naive"])
def test_padding_behind_a_tree_is_not_looked_at(verifier):
    """What stands there is NaN, for p and for q."""
    draft, target, streams = random_trees([3, 0, 6], params=[SamplingParams()])
    expected = verifier.verify(draft, target, streams)
    counts = draft.num_draft_tokens[:, None]
    q, p = ((torch.arange(width) < counts + more).flatten() for width, more in ((6, 0), (7, 1)))
    token_ids = torch.zeros(18).long().masked_scatter(q, draft.token_ids)
    parents = torch.full((18,), -1).masked_scatter(q, draft.parents)
    rows = scattered(draft.rows, q)
    padded = Draft(token_ids, rows, draft.num_draft_tokens, 6, padded=True, parents=parents, depth=6)
    result = verifier.verify(padded, scattered(target, p), streams)
    assert torch.equal(result.token_ids, expected.token_ids)
    assert torch.equal(result.path, expected.path)
    again, rows = padded.compact(scattered(target, p))
    assert torch.equal(again.parents, draft.parents)
    assert again.depth == 6
    assert torch.equal(rows.logits, target.logits)


def test_a_row_of_nan_yields_no_token():
    draft, target, streams = random_trees([4, 4], params=[SamplingParams()])
    for bad_p in (True, False):
        rows = target if bad_p else draft.rows
        nan = dataclasses.replace(rows, logits=torch.full_like(rows.logits, torch.nan), log_normalizer=None)
        arguments = (draft, nan) if bad_p else (dataclasses.replace(draft, rows=nan), target)
        for verifier in (TreeVerifier(), NaiveTreeVerifier()):
            result = verifier.verify(*arguments, streams)
            assert (result.token_ids.gather(1, result.num_accepted[:, None]) == PADDING).all()


BAD_TREES = {
    "a chain's verifier": ({}, MaskedVerifier(), "draft.parents: a tree; this verifier takes chains alone"),
    "a child before its parent": ({"parents": torch.tensor([-1, 0, 2, -1])}, None, r"draft.parents\[2\] = 2; token 2"),
    "below -1": ({"parents": torch.tensor([-2, 0, 1, -1])}, None, r"draft.parents\[0\] = -2"),
    "another request's": ({"parents": torch.tensor([-1, 0, 1, 2])}, None, r"draft.parents\[3\] = 2; token 0"),
    "too few": ({"parents": torch.tensor([-1, 0, 1])}, None, r"draft.parents: torch.int64 \(3,\); int64 \(4,\)"),
    "no integers": ({"parents": torch.zeros(4)}, None, "draft.parents: torch.float32"),
    "a depth of 0": ({"depth": 0}, None, "draft.depth: 0; token 0 of its request is deeper"),
    "a deeper path": (
        {"parents": torch.tensor([-1, 0, 1, -1]), "depth": 2}, None, "draft.depth: 2; token 2 of its request is deeper",
    ),
    "no depth": ({"depth": None}, None, "draft.depth: None; a tree has both"),
}  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("changes", "verifier", "message"), BAD_TREES.values(), ids=BAD_TREES.keys())
def test_trees_that_are_none_are_refused(changes, verifier, message):
    draft, target, streams = ragged_case([3, 1], 7)
    tree = dataclasses.replace(draft, **{"parents": torch.tensor([-1, -1, 0, -1]), "depth": 3, **changes})
    with pytest.raises(ArgumentError, match=message):
        (verifier or TreeVerifier()).verify(tree, target, streams)


@pytest.mark.parametrize("reach", [Streams.reaching, reaching])
def test_uniforms_of_wider_streams_are_the_same(reach):
    streams = Streams(torch.arange(3), torch.arange(3), 2)
    wide = reach(streams, 9)
    assert wide.width == 9
    assert torch.equal(wide.uniform(Stream.ACCEPT)[:, :2], streams.uniform(Stream.ACCEPT))
    assert reach(wide, 4) is wide
