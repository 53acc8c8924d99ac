"""Decoding with trees: texts, processors, the step log and its numbers, and what does not go together."""

import dataclasses

import pandas as pd
import pytest
import torch

from specbench.core import trees
from specbench.core.errors import ConfigError
from specbench.core.rng import Streams
from specbench.drafters.tree import MOST_TOKENS, TreeDrafter
from specbench.metrics import ratios
from specbench.metrics.acceptance import acceptance_fields
from specbench.metrics.results import STEPS
from specbench.models import CachedModel
from specbench.rules.token.tree import TreeVerifier
from specbench.sampling import History, RowParams, SamplingParams
from specbench.sampling.batch import RUNNING, Batch
from tests.decoding.test_decoding import make_requests
from tests.decoding.test_engines import logs
from tests.decoding.test_ways import Stirred
from tests.drafters.test_trees import IDS, PARENTS, PATHS
from tests.helpers.cases import decoder
from tests.protocols.test_honest_rows import context, protocol_of

# --- Texts ---


def test_a_tree_without_branches_is_the_chain(exact):
    """Bit for bit: the texts and the acceptance that the draft model and the token rule have."""
    requests = make_requests(exact, 3, max_new_tokens=16)
    chain = decoder(exact, 4).run(requests)
    tree = decoder(exact, 4, drafter=TreeDrafter([1]), verifier=TreeVerifier()).run(requests)
    assert logs(tree) == logs(chain)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 4, 7])
def test_trees_are_cut_by_depth_near_the_end(pair, max_new_tokens):
    requests = make_requests(pair, 4, max_new_tokens=max_new_tokens)
    requests = [dataclasses.replace(request, stop_ids=frozenset()) for request in requests]
    made = decoder(pair, 4, drafter=TreeDrafter([2, 2]), verifier=TreeVerifier())
    nodes = [0, 2, 6, 10, 14]
    for completion in made.run(requests):
        assert len(completion.token_ids) == max_new_tokens
        left = max_new_tokens
        for step in completion.steps:
            assert step.draft_depth == min(4, left - 1)
            assert step.num_draft_tokens == nodes[step.draft_depth]
            assert step.num_accepted <= step.draft_depth
            left -= step.num_emitted


# --- Processors ---


def test_each_place_of_a_tree_has_a_history_of_its_own():
    text = torch.tensor([[7, 8, 0, 0, 0, 0], [9, 5, 6, 0, 0, 0]])
    lengths = torch.tensor([2, 3])
    seen_by = []

    class Listening:
        def __call__(self, logits, history: History):
            seen_by.append([[t for t in row if t >= 0] for row in history.tokens.tolist()])
            return logits

    params = RowParams.of([SamplingParams(processors=[Listening()])] * 2)
    running = torch.full((2,), RUNNING)
    batch = Batch(text, lengths, lengths, lengths + 3, lengths, lengths, params, running, lengths[:, None])
    seen = trees.with_root(trees.ancestors(torch.tensor([PARENTS] * 2), 3))[:, :, 1:]
    batch.rows_of_tree(torch.zeros(14, 100), torch.tensor([IDS] * 2), seen, 3)
    histories, of_last_alone = seen_by
    assert of_last_alone == histories[-1:]
    along = [[], *([IDS[i] for i in p] for p in PATHS)]
    assert histories == [[*start, *drafted] for start in ([7, 8], [9, 5, 6]) for drafted in along]


def test_each_token_is_drawn_from_the_draft_model_along_its_path(pair):
    """The row of every drafted token, processor and all, against one pass over its path; siblings before it are out."""
    made, stir = decoder(pair, 2, drafter=TreeDrafter([2, 2]), verifier=TreeVerifier()), Stirred()
    (request,) = make_requests(pair, 1, SamplingParams(processors=[stir]))
    made.start([request])
    batch = made.engine._batch
    draft = made.components.drafter.propose(batch, batch.free_tokens(), Streams(batch.seeds, batch.lengths, 3))
    tokens, parents = draft.token_ids.tolist(), draft.parents.tolist()
    for i, parent in enumerate(parents):
        path = [*request.prompt, *([tokens[parent]] if parent >= 0 else [])]
        of_path = History(
            torch.tensor([path]),
            *torch.tensor([[len(request.prompt)], [len(path)]]),
            torch.zeros(1, 0).long(),
            *torch.zeros(2, 1).long(),
        )
        expected = stir(made.components.drafter.model.score(path)[-1:], of_path)[0]
        before = [tokens[j] for j in range(i) if parents[j] == parent]
        assert draft.rows.logits[i, before].tolist() == [-torch.inf] * len(before)
        expected[before] = -torch.inf
        torch.testing.assert_close(draft.rows.logits[i], expected, rtol=0, atol=1e-3)


# --- What a tree's numbers mean ---


def test_rates_by_position_are_by_depth():
    """A tree of 6 tokens and depth 2, and one cut to 2 tokens and depth 1: it does not count as reaching position 2."""
    counts = {"num_draft_tokens": [6, 6, 2], "num_accepted": [2, 0, 1], "num_emitted": [3, 1, 2]}
    steps = pd.DataFrame({"prompt": "a", "draft_depth": [2, 2, 1], **counts})
    fields = acceptance_fields(steps, 2)
    assert fields["joint_rates"] == [2 / 3, 1 / 2]
    assert fields["conditional_rates"] == [2 / 3, 1.0]
    log = ratios.StepLog.of(steps, 2)
    assert ratios.ratio(log, ratios.FULL_DRAFTS) == 2.0
    assert ratios.ratio(log, "Σa / Σ(a + [a<d])") == 3 / 4
    old = ratios.StepLog.of(steps.drop(columns="draft_depth"), 2)
    assert old.depth.tolist() == [6, 6, 2]


@pytest.mark.usefixtures("unchecked")
def test_the_protocol_decode_measures_trees(pair):
    """Its row adds up, its step log has depths, and the check and the overlap are there as for chains."""
    target = CachedModel(pair.target, pair.vocab_size, "target")
    drafter = TreeDrafter([3, 2]).bind(pair, target)
    chains = context(pair, needs_models=True)
    result = protocol_of("decode").run(dataclasses.replace(chains, drafter=drafter, verifier=TreeVerifier()))
    row, steps = result.measured, pd.DataFrame(result.tables[STEPS].rows)
    nodes = sum(3 * (depth > 0) + 6 * (depth > 1) for depth in steps["draft_depth"])
    assert row["drafted"] == steps["num_draft_tokens"].sum() == nodes
    assert row["acceptance_rate"] == pytest.approx(row["accepted"] / row["drafted"])
    assert row["acceptance_length"] == pytest.approx(1 + row["accepted"] / row["steps"])
    assert len(row["acceptance_histogram"]) == 3
    whole, deep = steps["num_accepted"] == 2, steps["draft_depth"] == 2
    assert row["joint_rates"][1] == pytest.approx(whole.sum() / deep.sum())
    assert 0 < row["overlap"] < 1
    assert row["check_draws"] == 4


# --- What does not go together ---


def test_a_verifier_of_chains_and_a_gamma_below_the_levels_are_refused(pair):
    with pytest.raises(ConfigError, match=r"verifier=masked: takes chains alone.*Use verifier=tree"):
        decoder(pair, drafter=TreeDrafter([2]))
    with pytest.raises(ConfigError, match=r"drafter.branches=\[2, 2, 1, 1\]: 4 levels, but gamma=3"):
        decoder(pair, drafter=TreeDrafter([2, 2, 1, 1]), verifier=TreeVerifier())
    assert TreeDrafter([2, 2, 1, 1]).most_tokens(0) == 0
    assert TreeDrafter([2, 2, 1, 1]).most_tokens(6) == 2 + 4 * 5


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("branches", [[], [0], [2, -1], [1.5], "22", 3, [True]], ids=repr)
def test_branches_are_counts(branches):
    with pytest.raises(ConfigError, match="drafter.branches"):
        TreeDrafter(branches)


def test_a_tree_may_not_be_too_large():
    with pytest.raises(ConfigError, match=f"more than {MOST_TOKENS} tokens"):
        TreeDrafter([8, 8, 8])
    with pytest.raises(ConfigError, match=f"more than {MOST_TOKENS} tokens"):
        TreeDrafter([100]).most_tokens(8)
