"""The decode loop on the embedded pair: texts depend on seed and prompt alone, lengths and stops are exact."""

import dataclasses

import pytest

from specbench.core.errors import ConfigError
from specbench.decoding import Request
from specbench.decoding.engines.eager import EagerEngine
from specbench.decoding.engines.static import StaticEngine
from specbench.drafters.prompt_lookup import PromptLookupDrafter
from specbench.runs.workloads import load_prompts
from specbench.sampling import SamplingParams
from tests.helpers.cases import decoder

GREEDY = SamplingParams(temperature=0.0)


def make_requests(pair, count, sampling=None, max_new_tokens=14, whole=False):
    """Embedded prompts or their beginnings; ``sampling`` None mixes greedy, hot and truncated requests."""
    mixed = [SamplingParams(), GREEDY, SamplingParams(temperature=0.7, top_k=40, top_p=0.9)]
    requests = []
    for i, prompt in enumerate(load_prompts("embedded:embedded.jsonl", count)):
        tokens = tuple(pair.encode(prompt.text)[: None if whole else 30 + 9 * (i % 3)])
        requests.append(Request(prompt.name, tokens, 1000 + i, sampling or mixed[i % 3], max_new_tokens))
    return requests


def texts(completions):
    return [completion.token_ids for completion in completions]


@pytest.mark.thorough
@pytest.mark.usefixtures("unchecked")
def test_greedy_speculative_text_is_greedy_plain_text_over_the_whole_workload(pair):
    requests = make_requests(pair, 0, GREEDY, max_new_tokens=16)
    assert len(requests) >= 64
    for start in range(0, len(requests), 24):
        batch = requests[start : start + 24]
        assert texts(decoder(pair, gamma=5).run(batch)) == texts(decoder(pair, gamma=0).run(batch))


@pytest.mark.parametrize("engine", [EagerEngine(), StaticEngine()], ids=["eager", "static"])
def test_max_new_tokens_is_exact(pair, engine):
    """For each request of a batch, though a block may be drafted across it; and each text is that of a single run."""
    lengths = (1, 2, 5, 12, 7)
    pairs = zip(make_requests(pair, len(lengths)), lengths, strict=True)
    requests = [dataclasses.replace(request, max_new_tokens=length) for request, length in pairs]
    together = decoder(pair, stop_ids=[], engine=engine).run(requests)
    assert [len(completion.token_ids) for completion in together] == [*lengths]
    assert {completion.finished for completion in together} == {"length"}
    assert texts(together) == [texts(decoder(pair, stop_ids=[]).run([request]))[0] for request in requests]
    assert decoder(pair, engine=engine).run([]) == []


def test_a_stop_token_inside_a_block_ends_the_text_there(pair):
    request = make_requests(pair, 1, GREEDY, max_new_tokens=20, whole=True)[0]
    free = decoder(pair, gamma=0, stop_ids=[]).run([request])[0].token_ids
    accepted = decoder(pair, gamma=5, stop_ids=[]).run([request])[0].steps
    block = next(s for s in accepted if s.num_accepted >= 2)
    start = sum(s.num_emitted for s in accepted[: block.step])
    stop = free[start + 1]  # the second token of a block of which at least three are emitted
    if stop in free[: start + 1]:
        pytest.fail("choose another prompt: the stop token occurs earlier")
    completion = decoder(pair, gamma=5, stop_ids=[stop]).run([request])[0]
    assert completion.token_ids == free[: start + 2]
    assert completion.finished == "stop"
    assert completion.steps[-1].num_emitted == 2 < completion.steps[-1].num_accepted + 1


def test_the_step_log_adds_up(pair):
    for completion in decoder(pair, gamma=4).run(make_requests(pair, 8)):
        assert sum(step.num_emitted for step in completion.steps) == len(completion.token_ids)
        assert all(step.num_accepted <= step.num_draft_tokens <= 4 for step in completion.steps)
        assert [step.step for step in completion.steps] == list(range(len(completion.steps)))


def test_draft_cache_is_never_recomputed(pair, monkeypatch):
    """Each drafted block feeds gamma tokens, and one more only after a block that was accepted whole."""
    fed = []
    speculative = decoder(pair, gamma=3, stop_ids=[])
    extend = speculative.components.drafter.model.extend
    monkeypatch.setattr(
        speculative.components.drafter.model,
        "extend",
        lambda ids, counts: (fed.append(int(counts[0])), extend(ids, counts))[1],
    )
    steps = speculative.run(make_requests(pair, 1, GREEDY, max_new_tokens=40))[0].steps
    expected = 0
    for previous, step in zip([None, *steps], steps, strict=False):
        whole = previous is not None and previous.num_accepted == previous.num_draft_tokens == 3
        expected += step.num_draft_tokens + (1 if whole and step.num_draft_tokens else 0)
    assert sum(fed) == expected


def test_prompt_lookup_refuses_impossible_sizes(pair):
    with pytest.raises(ConfigError, match="drafter.shortest"):
        PromptLookupDrafter(longest=2, shortest=3)
