"""The linear head of docs/drafters.md, which reads hidden states of the target, is run as it stands there.

It lies outside of the tree, and drafts alike in every kind of step; a subclass drafts trees.
"""

import copy
import dataclasses
from collections import Counter

import pytest
import torch

from specbench.core import arguments
from specbench.core.types import Draft
from specbench.decoding import step
from specbench.decoding.engines.graph import GraphEngine
from specbench.drafters import Drafter
from specbench.extras.compiled.engine import CompiledEngine
from specbench.models import load_pair
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.token.tree import TreeVerifier
from specbench.runs.workloads import load_prompts
from tests.decoding.test_decoding import GREEDY, make_requests, texts
from tests.decoding.test_engines import logs
from tests.drafters.test_hidden_states import ENGINES
from tests.helpers import cases
from tests.helpers.cases import decoder
from tests.helpers.command_lines import ROOT
from tests.helpers.kernel_cases import on_a_gpu
from tests.helpers.no_reading import NoReading
from tests.helpers.shape_checks import without_shape_checks
from tests.tree.test_readme import blocks


class Unigram(Drafter):
    """Drafts the most frequent token."""

    def __init__(self, token):
        self.token = token

    def propose(self, batch, limits, streams):
        width = streams.width - 1
        tokens = torch.full((len(batch) * width,), self.token, device=batch.lengths.device)
        return Draft(tokens, None, limits, width, padded=True)


@pytest.fixture(scope="module")
def guide(thorough):
    """The names of the guide's code, run as a reader runs it: without the checks of shapes.

    A quick head is fitted on a third of the guide's texts.
    """
    (block,) = [block for block in blocks(ROOT / "docs/drafters.md") if "class LinearHead" in block]
    assert "prompts[:24]" in block
    block = block if thorough else block.replace("prompts[:24]", "prompts[:8]")
    names = {"__name__": "__main__"}
    with without_shape_checks():
        exec(compile(block, "drafters.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def exact(pair):
    """The pair that the guide's head was fitted on."""
    return cases.in_float64(pair)


@pytest.fixture(scope="module")
def unseen_requests(exact, thorough):
    """Requests that the head was not fitted on, of different lengths."""
    prompts = [exact.encode(prompt.text) for prompt in load_prompts("embedded:embedded.jsonl", 32)[24:]]
    made = make_requests(exact, len(prompts), GREEDY)
    return [
        dataclasses.replace(request, prompt=tuple(prompt), max_new_tokens=(14 if thorough else 6) + 6 * (i % 3))
        for i, (request, prompt) in enumerate(zip(made, prompts, strict=True))
    ]


def in_float64(guide):
    return guide["LinearHead"](guide["head"].weights.double())


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_a_linear_head_is_lossless_and_beats_the_most_frequent_token(exact, guide, unseen_requests):
    plain = texts(decoder(exact, 0).run(unseen_requests))
    counts = Counter(token for text in guide["written"] for token in text.token_ids)
    accepted = {}
    for drafter in (in_float64(guide), Unigram(counts.most_common(1)[0][0])):
        completions = decoder(exact, drafter=drafter).run(unseen_requests)
        assert texts(completions) == plain
        accepted[type(drafter).__name__] = sum(step.num_accepted for text in completions for step in text.steps)
    assert accepted["LinearHead"] > 2 * accepted["Unigram"], accepted


@pytest.mark.cases(1, 2)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", ENGINES)
def test_engines_and_batches_draft_alike(exact, guide, unseen_requests, engine):
    """Each request by itself, and in batches that come and go."""
    short = dataclasses.replace(unseen_requests[0], prompt=unseen_requests[0].prompt[:1], name="short")
    requests = [*unseen_requests[:3], short]
    alone = [logs(decoder(exact, drafter=in_float64(guide)).run([request]))[0] for request in requests]
    decoding = decoder(exact, drafter=in_float64(guide), engine=ENGINES[engine]())
    assert logs(decoding.run(requests, at_once=3)) == alone
    assert logs(decoding.run(requests[::-1], at_once=2)) == alone[::-1]


def tree_head(guide):
    """The guide's head with two candidates for the first token, and one behind each."""

    class TreeHead(guide["LinearHead"]):
        drafts_trees = True

        def most_tokens(self, gamma):
            return 4

        def propose(self, batch, limits, streams):
            if streams.width == 1:
                return Draft.empty(len(batch), batch.lengths.device)
            state, token = self.last.states[: len(batch)], batch.span(batch.lengths - 1, 1)[:, 0]
            state = torch.cat([state, self.embed(token)], dim=1) @ self.weights
            first = self.output(state).topk(2, dim=1).indices
            behind = [
                self.output(torch.cat([state, self.embed(token)], dim=1) @ self.weights).argmax(dim=1)
                for token in first.unbind(1)
            ]
            depth = streams.width - 1
            tokens = torch.cat([first, torch.stack(behind, dim=1)], dim=1)[:, : 2 * depth]
            parents = (torch.arange(2 * depth, device=tokens.device) - 2).clamp(min=-1).repeat(len(batch))
            return Draft(tokens.flatten(), None, 2 * limits, 2 * depth, padded=True, parents=parents, depth=depth)

    return TreeHead(guide["head"].weights.double())


@pytest.mark.cases(1, 2)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_head_drafts_trees(exact, guide, unseen_requests, engine):
    plain = texts(decoder(exact, 0).run(unseen_requests[:5]))
    chain = decoder(exact, 2, drafter=in_float64(guide)).run(unseen_requests[:5])
    tree = decoder(exact, 2, drafter=tree_head(guide), verifier=TreeVerifier(), engine=ENGINES[engine]())
    completions = tree.run(unseen_requests[:5], at_once=3)
    assert texts(completions) == plain
    assert sum(len(text.steps) for text in completions) < sum(len(text.steps) for text in chain)


@pytest.mark.usefixtures("reading_nothing", "unchecked")
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_a_step_with_a_head_reads_nothing_back(exact, guide, unseen_requests, kind, monkeypatch):
    """But for the check of drafted ids, which is left out if the host may not wait."""
    from tests.decoding.test_step import Unchecked

    monkeypatch.setattr(arguments, "_may_wait", lambda device: False)
    drafter = in_float64(guide) if kind == "chain" else tree_head(guide)
    decoding = decoder(exact, 2, drafter=drafter, verifier=Unchecked() if kind == "chain" else TreeVerifier())
    decoding.start(unseen_requests[:3])
    before = decoding.engine._batch
    if kind == "chain":
        with NoReading():
            before, _ = step.step(before, decoding.components)
    else:  # the verifier of trees checks its arguments; what is observed of its result reads nothing
        streams = step.streams_of(before.seeds, before.lengths, 3)
        draft = decoding.components.drafter.propose(before, before.free_tokens(), streams)
        rows, hidden = step.score(before, draft, decoding.components.target, features=("last",))
        verification = TreeVerifier().verify(draft, rows, step.streams_of(before.seeds, before.lengths, 5))
        with NoReading(), torch.inference_mode():
            decoding.components.drafter.observe(step._observation(before, draft, verification, hidden))


@on_a_gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # PyTorch's own, while it compiles
@pytest.mark.usefixtures("unchecked")  # checks of shapes would be compiled too
@pytest.mark.parametrize("kind", ["chain", "tree"])
def test_captured_and_compiled_steps_draft_what_eager_ones_do(guide, kind):
    made = load_pair("embedded:target", device="cuda", dtype="float32")
    weights = guide["head"].weights.cuda()
    drafter = guide["LinearHead"](weights) if kind == "chain" else copy.copy(tree_head(guide))
    drafter.weights = weights
    verifier, gamma = (MaskedVerifier(), 3) if kind == "chain" else (TreeVerifier(), 2)
    requests = make_requests(made, 7, GREEDY)
    expected = logs(decoder(made, gamma, drafter=drafter, verifier=verifier).run(requests, 3))
    plain = texts(decoder(made, 0).run(requests))
    assert [tokens for tokens, *_ in expected] == plain
    for engine in (GraphEngine(), GraphEngine(prompt_chunk=7), CompiledEngine()):
        completions = decoder(made, gamma, drafter=drafter, verifier=verifier, engine=engine).run(requests, 3)
        assert texts(completions) == plain
        accepted = sum(step.num_accepted for text in completions for step in text.steps)
        assert abs(accepted - sum(step.num_accepted for _, steps, _ in expected for step in steps)) < 5
