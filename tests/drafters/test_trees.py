"""Drafts as trees: who stands before whom, masks and caches, and what the drafter draws."""

import dataclasses

import numpy as np
import pytest
import torch

from specbench.core import trees
from specbench.core.rng import Streams
from specbench.core.types import LogitRows
from specbench.decoding import Decoder, Request
from specbench.drafters.tree import TopTreeDrafter, TreeDrafter, TreeShape, children
from specbench.exactness.statistics.g_tests import node_g_test
from specbench.rules.token.tree import TreeVerifier
from specbench.sampling import RowParams, SamplingParams, logit_rows
from tests.decoding.test_decoding import GREEDY, make_requests
from tests.helpers.cases import decoder
from tests.helpers.markov_pair import MarkovModel, markov_pair
from tests.helpers.tree_enumeration import without_replacement

# Children 0 and 1 of the text, 2 and 3 of token 0, 4 of token 1, 5 of token 3.
PARENTS = [-1, -1, 0, 0, 1, 3]
PATHS = [[0], [1], [0, 2], [0, 3], [1, 4], [0, 3, 5]]
IDS = [50, 60, 70, 80, 90, 51]


# --- Who stands before whom ---


def test_ancestors_depths_and_paths():
    seen = trees.ancestors(torch.tensor([PARENTS, [-1] * 6]), 3)
    assert [row.nonzero()[:, 0].tolist() for row in seen[0]] == PATHS
    assert torch.equal(seen[1], torch.eye(6).bool())
    assert trees.depths(seen).tolist() == [[1, 1, 2, 2, 2, 3], [1] * 6]
    paths = trees.paths(seen, 3)
    assert [paths[0, i, : len(path)].tolist() for i, path in enumerate(PATHS)] == PATHS
    assert torch.equal(trees.paths(seen[:, 2:5], 3), paths[:, 2:5])
    rooted = trees.with_root(seen)[0]
    assert [row.nonzero()[:, 0].tolist() for row in rooted] == [[0], *([0, *(i + 1 for i in p)] for p in PATHS)]


def test_the_shape_of_a_tree():
    shape = TreeShape([2, 3, 1], torch.device("cpu"))
    assert shape.first == [0, 2, 8, 14]
    assert shape.parents.tolist() == [-1, -1, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7]
    assert shape.seen[0, 13].nonzero()[:, 0].tolist() == [1, 7, 13]


# --- The drafter ---


def test_children_come_without_replacement_and_say_what_they_were_drawn_from():
    """Rows of all kinds: the second has two tokens left, so that drawing begins again with the third child."""
    kinds = [SamplingParams(), SamplingParams(top_k=2), SamplingParams(temperature=0.7, top_p=0.9), GREEDY]
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 6, generator=generator).repeat_interleave(500, 0)
    rows = logit_rows(logits, RowParams.of([kind for kind in kinds for _ in range(500)]))
    tokens, drawn_from = children(rows, torch.rand(2000, 3, generator=generator).double())
    q, drawn_from = rows.probs(), drawn_from.probs().view(2000, 3, 6)
    for b in range(0, 2000, 50):
        for j in range(3):
            # At temperature 0 any token is left while there is one: its probability is 0 until it is the likeliest.
            expected = without_replacement(q[b], tokens[b, :j].tolist())
            if b < 1500:
                torch.testing.assert_close(drawn_from[b, j], expected, rtol=0, atol=1e-12)
            assert drawn_from[b, j, tokens[b, j]] > 0
    assert (tokens[:500].sort(dim=1).values.diff(dim=1) > 0).all()
    assert (tokens[500:1000, 0] != tokens[500:1000, 1]).all()
    assert torch.equal(tokens[1500:], logits[1500:].argsort(dim=1, descending=True)[:, :3])
    greedy = LogitRows(logits[1500:], rows.temperature[1500:], torch.full((500,), 9.0).double(), None)
    assert torch.equal(children(greedy, torch.rand(500, 3).double())[0], tokens[1500:])  # its cutoff does not count


def test_the_most_likely_children_are_drafted_at_any_temperature(pair):
    """Of truncated rows too; and each says that it could have been no other."""
    made = decoder(pair, 2, drafter=TopTreeDrafter([3, 2]), verifier=TreeVerifier())
    hot = [SamplingParams(temperature=1.5), SamplingParams(temperature=0.5, top_k=2)]
    requests = [dataclasses.replace(r, sampling=hot[i]) for i, r in enumerate(make_requests(pair, 2))]
    made.start(requests)
    batch = made.engine._batch
    draft = made.components.drafter.propose(batch, batch.free_tokens(), Streams(batch.seeds, batch.lengths, 3))
    for b, request in enumerate(requests):
        tokens = draft.token_ids.view(2, 9)[b].tolist()
        assert tokens[:3] == made.components.drafter.model.score(request.prompt)[-1].topk(3).indices.tolist()
        behind = made.components.drafter.model.score([*request.prompt, tokens[1]])[-1].topk(2).indices.tolist()
        assert tokens[5:7] == behind
    assert draft.rows.prob(draft.token_ids).tolist() == [1.0] * 18
    assert not made.components.drafter.has_probabilities


class TreeModel(MarkovModel):
    """Logits by the last token, whatever else is seen."""

    context, vocab_size, name = 10**6, 0, "table"

    def truncate(self, lengths, path=None):
        kept = torch.minimum(self.lengths - lengths + (path >= 0).sum(dim=1), (path >= 0).sum(dim=1))
        torch.minimum(self.lengths, lengths - (path >= 0).sum(dim=1) + kept, out=self.lengths)


def first_steps(p, q, drafter, count):
    """What the first step emits, [count, depth + 1], after a text that ends in token 0; through the whole step."""
    depth = len(drafter.branches)
    drafter.model = TreeModel(q)
    drafter.caches = (drafter.model,)
    made = Decoder(TreeModel(p), drafter, TreeVerifier(), depth, frozenset())
    request = Request("toy", (0, 0), 0, SamplingParams(), depth + 1)
    completions = made.start([dataclasses.replace(request, seed=seed) for seed in range(count)])
    made.step()
    return [completion.token_ids for completion in completions]


def g_test(p, emitted, depth):
    """p-value of the joint of whole steps, each completed with draws from the target."""
    rng, vocabulary = np.random.default_rng(0), len(p)
    numbers = []
    for tokens in emitted:
        whole, last = [], 0
        for i in range(depth + 1):
            last = tokens[i] if i < len(tokens) else int(rng.choice(vocabulary, p=p[last]))
            whole.append(last)
        numbers.append(int("".join(map(str, whole)), vocabulary))
    expected = p[0]
    for _ in range(depth):
        expected = (expected.reshape(-1, vocabulary)[:, :, None] * p[None]).ravel()
    return node_g_test(np.bincount(numbers, minlength=len(expected))[None], expected[None]).p_value


@pytest.mark.cases(1)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("drafter", [TreeDrafter([3, 2]), TopTreeDrafter([3, 2])], ids=["sampled", "most likely"])
def test_steps_on_trees_are_distributed_as_the_target(drafter, thorough):
    """The drafter's own sampling, the decoder's step, its verification; false alarm 1e-7. A total variation of 0.05
    is hardly missed by the longer form: the noncentrality is above 4 * 20000 * 0.05^2 = 200 for 124 degrees of freedom.
    Five tokens, since what two refusals leave of three is one token, however it was come by."""
    p, q = markov_pair(5, closeness=0.0, seed=2)
    emitted = first_steps(p, q, drafter, 20_000 if thorough else 6_000)
    assert g_test(p, emitted, 2) > 1e-7
    chain = first_steps(p, q, type(drafter)([1, 1]), 2_000)
    accepted, of_chain = (np.mean([len(tokens) - 1 for tokens in steps]) for steps in (emitted, chain))
    assert accepted > 1.3 * of_chain
    assert g_test(q, emitted, 2) < 1e-7
