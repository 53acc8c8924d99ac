"""Stand-ins for other projects' packages: their functions' input formats, as documented, over ``masked``.

An adapter that feeds one of them must agree with ``masked`` token for token.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows
from specbench.rules.external import adapter
from specbench.rules.external.flashinfer import FlashinferVerifier
from specbench.rules.token.masked import MaskedVerifier


def plain_rows(logits: torch.Tensor, temperature: torch.Tensor | None = None) -> LogitRows:
    ones = torch.ones(len(logits), dtype=torch.float64)
    return LogitRows(logits, ones if temperature is None else temperature.double(), -torch.inf * ones, None)


def install_modules(monkeypatch: pytest.MonkeyPatch, modules: dict[str, SimpleNamespace]) -> None:
    """Puts stand-in modules where the adapters look for the libraries', and lets them run on a CPU."""
    for name, content in modules.items():
        module = ModuleType(name)
        module.__dict__.update(vars(content))
        parts = name.split(".")
        for depth in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:depth]), ModuleType(parts[depth - 1]))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def install_vllm_v1(monkeypatch: pytest.MonkeyPatch, streams: Streams) -> None:
    """vLLM V1's samplers as their signatures and comments describe them, over ``masked``."""

    class Sampler:
        def __call__(self, logits, sampling):
            empty = Draft.empty(len(logits), logits.device)
            temperature = torch.zeros(len(logits)) if sampling.temperature is None else sampling.temperature
            result = MaskedVerifier().verify(empty, plain_rows(logits, temperature), streams)
            logits.zero_()  # the library's own sampler overwrites its logits too
            return SimpleNamespace(sampled_token_ids=result.token_ids.int())

    class RejectionSampler:
        def __init__(self, sampler):
            pass

        def __call__(self, spec, q, logits, sampling):
            counts = torch.tensor(spec.num_draft_tokens)
            temperature = torch.zeros(len(counts)) if sampling.temperature is None else sampling.temperature
            order = torch.cat([spec.target_logits_indices.long(), spec.bonus_logits_indices.long()]).argsort()
            rows = torch.cat([logits[spec.target_logits_indices], logits[spec.bonus_logits_indices]])[order]
            target = plain_rows(rows, temperature.repeat_interleave(counts + 1))
            q_rows = None if q is None else plain_rows(q.log())
            draft = Draft(spec.draft_token_ids.long(), q_rows, counts, int(counts.max()))
            assert torch.equal(spec.cu_num_draft_tokens, counts.cumsum(0).int())
            result = MaskedVerifier().verify(draft, target, streams)
            return SimpleNamespace(sampled_token_ids=result.token_ids.int())

    install_modules(
        monkeypatch,
        {
            "vllm.v1.sample.rejection_sampler": SimpleNamespace(RejectionSampler=RejectionSampler, MAX_SPEC_LEN=128),
            "vllm.v1.sample.sampler": SimpleNamespace(Sampler=Sampler),
            "vllm.v1.sample.metadata": SimpleNamespace(SamplingMetadata=SimpleNamespace),
            "vllm.v1.sample.logits_processor": SimpleNamespace(LogitsProcessors=SimpleNamespace),
            "vllm.v1.spec_decode.metadata": SimpleNamespace(SpecDecodeMetadata=SimpleNamespace),
        },
    )


def install_vllm_v2(monkeypatch: pytest.MonkeyPatch, streams: Streams) -> None:
    """vLLM V2's functions as their signatures and comments describe them, over ``masked``."""

    def apply_temperature(logits, request_of_logit, temperature):
        divisor = temperature[request_of_logit.long()]
        logits.div_(torch.where(divisor == 0, 1, divisor)[:, None])

    def rejection_sample(
        logits, draft_logits, drafted, cu, pos, requests, owner, place, temperature, seeds, steps, **options
    ):
        counts = cu.diff().long() - 1
        is_draft = place > 0
        rows = None
        if draft_logits is not None:
            dense = draft_logits[owner[is_draft].long(), place[is_draft].long() - 1]
            rows = plain_rows(dense, temperature[owner[is_draft].long()])
        greedy = temperature[owner.long()] == 0
        draft = Draft(drafted[is_draft], rows, counts, steps)
        result = MaskedVerifier().verify(draft, plain_rows(logits, 1 - greedy.double()), streams)
        assert torch.equal(pos, streams.positions[owner.long()] + place)
        garbage = result.token_ids.masked_fill(result.token_ids == PADDING, 123_456)
        return garbage, (result.num_accepted + 1).int()

    package = "vllm.v1.worker.gpu"
    install_modules(
        monkeypatch,
        {
            f"{package}.spec_decode.rejection_sampler_utils": SimpleNamespace(rejection_sample=rejection_sample),
            f"{package}.sample.gumbel": SimpleNamespace(apply_temperature=apply_temperature),
        },
    )


def install_flashinfer(monkeypatch: pytest.MonkeyPatch, streams: Streams) -> None:
    """FlashInfer's functions as their docstrings describe them, over ``masked``."""

    def softmax(logits, temperature):
        assert logits.data_ptr() % 16 == 0, "misaligned address"
        return (logits.float() / temperature[:, None]).softmax(-1)

    def chain_speculative_sampling(q, token_ids, p, seed, offset):
        requests, gamma = token_ids.shape
        counts = torch.full((requests,), gamma)
        draft = Draft(token_ids.flatten().long(), plain_rows(q.flatten(0, 1).log()), counts, gamma)
        result = MaskedVerifier().verify(draft, plain_rows(p.flatten(0, 1).log()), streams)
        assert len(seed) == requests
        return result.token_ids.int(), None, result.num_accepted.int()

    modules = SimpleNamespace(softmax=softmax, chain_speculative_sampling=chain_speculative_sampling)
    install_modules(monkeypatch, {"flashinfer.sampling": modules})
    monkeypatch.setattr(FlashinferVerifier, "limits", adapter.Limits(ragged=False, empty=False, batch_invariant=False))
