"""What several test files share: ragged batches, the benchmark's cases, the laboratory's fixtures, flawed verifiers."""

import copy
import dataclasses
import random
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specbench.benchmark.grid import CaseSpec
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.decoding import Completion, Decoder, DecodingEngine, Request
from specbench.drafters import Drafter
from specbench.drafters.model import ModelDrafter
from specbench.exactness.evidence import Evidence
from specbench.exactness.fixtures import greedy_fixture, small_fixtures
from specbench.exactness.settings import Settings
from specbench.exactness.suite import Examination
from specbench.exactness.zoo.bugs import bugs, flawed
from specbench.models import CachedModel, Pair
from specbench.rules.external.adapter import ExternalVerifier
from specbench.rules.token.masked import MaskedVerifier
from specbench.rules.verifier import Verifier, capabilities
from specbench.sampling import RowParams, SamplingParams, logit_rows, sample

Amount = TypeVar("Amount")
MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=0.9, top_p=0.8),
    SamplingParams(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05),
]
CPU = torch.device("cpu")
BASE = CaseSpec(16, 501, 4, "bfloat16", "temperature", SamplingParams(temperature=0.8))
TRUNCATED = dataclasses.replace(
    BASE, sampler="truncated", sampling=SamplingParams(temperature=0.8, top_k=50, top_p=0.9)
)
FLAWED = {f"flawed/{bug}": flawed(bug) for bug in bugs()}
FIXTURES = {fixture.name: fixture for fixture in (*small_fixtures(), greedy_fixture()) if fixture.enumerable}
every_fixture = pytest.mark.parametrize("fixture", FIXTURES.values(), ids=FIXTURES.keys())


def examined(verifier: object, settings: Settings, seed: int = 0, inputs_seed: int = 0) -> Evidence:
    """What the suite finds out about a verifier."""
    with torch.inference_mode():
        return Examination(verifier, settings, seed, CPU, inputs_seed=inputs_seed).run()


def bound(drafter: Drafter, pair: Pair) -> Drafter:
    """A drafter at work on a pair."""
    return drafter.bind(pair, CachedModel(pair.target, pair.vocab_size, "target"))


def in_float64(pair: Pair) -> Pair:
    """The pair in float64, where shapes of matrix products move no token."""
    target, draft = (copy.deepcopy(model).double() for model in (pair.target, pair.draft))
    return dataclasses.replace(pair, target=target, draft=draft)


def noisy_pair(pair: Pair) -> Pair:
    """The draft in float64 as target, and a copy whose weights are a little off as draft."""
    target, draft = (_in_float64(copy.deepcopy(pair.draft)) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.mul_(1 + 0.05 * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    return dataclasses.replace(pair, target=target, draft=draft)


def _in_float64(model: PreTrainedModel) -> PreTrainedModel:
    """Returns a Llama that computes in float64 throughout: transformers computes norms and rotations in float32.

    Logits of compiled steps would be 2e-6 away from those of eager ones, enough to move a token once in a while.
    """
    for name, module in list(model.double().named_modules()):
        if isinstance(module, LlamaRMSNorm):
            norm = nn.RMSNorm(len(module.weight), module.variance_epsilon)
            norm.weight = module.weight
            model.set_submodule(name, norm)
        elif isinstance(module, LlamaRotaryEmbedding):
            model.set_submodule(name, _Rotations(module.inv_freq))
    return model


class _Rotations(nn.Module):
    """Returns the cosine and the sine of every position and frequency, as LlamaRotaryEmbedding does."""

    def __init__(self, frequencies: torch.Tensor):
        super().__init__()
        self.register_buffer("frequencies", frequencies.double(), persistent=False)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = (position_ids[..., None] * self.frequencies).repeat(1, 1, 2)
        return angles.cos(), angles.sin()


def decoder(
    pair: Pair,
    gamma: int = 3,
    *,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    stop_ids: Iterable[int] | None = None,
    engine: DecodingEngine | None = None,
) -> Decoder:
    """A decoder of a pair: by its draft model and the masked verifier, if nothing else is given; plain for gamma 0."""
    target = CachedModel(pair.target, pair.vocab_size, "target")
    stops = pair.stop_ids if stop_ids is None else frozenset(stop_ids)
    if gamma == 0:
        return Decoder(target, None, None, 0, stops, engine, pair.tokenizer)
    made = (drafter or ModelDrafter()).bind(pair, target)
    return Decoder(target, made, verifier or MaskedVerifier(), gamma, stops, engine, pair.tokenizer)


def come_and_go(decoder: Decoder, requests: Sequence[Request], rng: random.Random, most: int) -> list[Completion]:
    """Decodes requests that are admitted at random times, up to ``most`` at once; the first one begins alone."""
    completions, waiting = decoder.start(requests[:1]), list(requests[1:])
    while decoder.active or waiting:
        if waiting and (not decoder.active or rng.random() < 0.3):
            count = rng.randint(1, most)
            completions += decoder.admit(waiting[:count])
            del waiting[:count]
        decoder.step()
    return completions


def missing_device(verifier: Verifier) -> str:
    """Why a verifier cannot take the suites' tensors, which are on the CPU; empty where it can."""
    if isinstance(verifier, ExternalVerifier) and verifier.limits.device not in (None, "cpu"):
        return f"{verifier.rule} runs on {verifier.limits.device} alone"
    if capabilities(verifier).interpreted is False:
        return "its kernels are compiled for a GPU; test_kernels.py has them there"
    return ""


def amount(verifier: Verifier, full: Amount, interpreted: Amount) -> Amount:
    """How much to ask of a verifier: all, or less of one whose kernels are interpreted for want of a GPU.

    The interpreter takes milliseconds a program, however few numbers it works on.
    """
    return interpreted if capabilities(verifier).interpreted else full


def ragged_case(
    counts: list[int],
    vocabulary: int,
    *,
    params: list[SamplingParams] | None = None,
    one_hot: bool = False,
    seed: int = 0,
) -> tuple[Draft, LogitRows, Streams]:
    """A random draft and the target's rows for it."""
    generator = torch.Generator().manual_seed(seed)
    batch, n, width = len(counts), sum(counts), max(counts)
    per_request = RowParams.of([(params or MIXED)[b % len(params or MIXED)] for b in range(batch)])
    streams = Streams(torch.arange(batch) + 1000 * seed, torch.full((batch,), 17), width + 1)
    num_draft_tokens = torch.tensor(counts)
    owner = torch.arange(batch).repeat_interleave(num_draft_tokens)
    offset = torch.cat([torch.arange(count) for count in counts]) if n else torch.zeros(0, dtype=torch.int64)
    q_logits = torch.randn(n, vocabulary, generator=generator) * 2
    q = logit_rows(q_logits, per_request.select(owner))
    token_ids = sample(q, streams.uniform(Stream.DRAFT)[owner, offset]) if n else torch.zeros(0, dtype=torch.int64)
    p_logits = torch.randn(n + batch, vocabulary, generator=generator) * 2
    p_logits[torch.arange(n) + owner] = q_logits + 0.7 * torch.randn(n, vocabulary, generator=generator)
    target_owner = torch.arange(batch).repeat_interleave(num_draft_tokens + 1)
    target = logit_rows(p_logits, per_request.select(target_owner))
    return Draft(token_ids, None if one_hot else q, num_draft_tokens, width), target, streams
