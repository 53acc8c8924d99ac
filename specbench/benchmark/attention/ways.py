"""The ways to compute attention that are compared. Each takes a case and gives a call, whose preparation is not timed.

Masks and the layouts that a way wants are made beforehand: the layers of a model share a mask, and a cache could be
laid out as the way wants it. All calls give [B, n, heads, size] in one piece, as a model's next product takes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specbench.benchmark.attention.cases import AttentionCase
from specbench.errors import SpecbenchError
from specbench.models import plain_attention

OURS = "ours"


class LeftOutError(SpecbenchError):
    """A way that does not do a case; the message says why."""


def ours(case: AttentionCase) -> Callable[[], Tensor]:
    """What models run here: the Triton kernel on a GPU, its plain twin elsewhere."""
    return _with_places(case, plain_attention.chosen(case.query, case.value))


def plain(case: AttentionCase) -> Callable[[], Tensor]:
    """The kernel's plain twin: PyTorch's attention, where the heads that share keys are rows of one matrix."""
    if plain_attention.chosen(case.query, case.value) is plain_attention.attend:
        raise LeftOutError("it is what ours runs here")
    return _with_places(case, plain_attention.attend)


def sdpa(case: AttentionCase) -> Callable[[], Tensor]:
    """PyTorch's scaled_dot_product_attention over the whole cache, with a boolean mask and enable_gqa."""
    _refuse_softcap(case)

    def call() -> Tensor:
        out = scaled_dot_product_attention(
            case.query, case.key, case.value, attn_mask=case.mask, scale=case.scale, enable_gqa=True
        )
        return out.transpose(1, 2).contiguous()

    return call


def sdpa_repeated(case: AttentionCase) -> Callable[[], Tensor]:
    """The same, with the keys and values repeated for each head in every call, as many models do it."""
    _refuse_softcap(case)
    group = case.spec.heads // case.spec.key_heads

    def call() -> Tensor:
        key, value = (each.repeat_interleave(group, dim=1) for each in (case.key, case.value))
        out = scaled_dot_product_attention(case.query, key, value, attn_mask=case.mask, scale=case.scale)
        return out.transpose(1, 2).contiguous()

    return call


def flash(case: AttentionCase) -> Callable[[], Tensor]:
    """PyTorch's flash attention for requests of different lengths, torch.nn.attention.varlen.

    It gets the keys of all requests one after the other, without the places that are not filled.
    """
    _refuse_what_flash_cannot(case)
    from torch.nn.attention import varlen  # here: so that releases that lack or move it keep the other ways

    attend: Any = varlen.varlen_attn
    # PyTorch 2.11 has no such argument, and shares the heads of keys unasked.
    shared = {"enable_gqa": True} if "enable_gqa" in inspect.signature(attend).parameters else {}
    batch, n, lengths = case.spec.batch_size, case.spec.tokens, case.lengths.tolist()
    query = case.query.transpose(1, 2).flatten(0, 1).contiguous()
    key, value = (
        torch.cat([each[b, :, :length].transpose(0, 1) for b, length in enumerate(lengths)])
        for each in (case.key, case.value)
    )
    ends = torch.nn.functional.pad(case.lengths.cumsum(0), (1, 0)).int()
    query_ends = torch.arange(0, batch * n + 1, n, device=query.device, dtype=torch.int32)
    window = (-1 if case.spec.window is None else case.spec.window - 1, 0)

    def call() -> Tensor:
        most = (n, case.spec.context)
        out = attend(query, key, value, query_ends, ends, *most, scale=case.scale, window_size=window, **shared)
        return out.unflatten(0, (batch, n))

    return call


WAYS: dict[str, Callable[[AttentionCase], Callable[[], Tensor]]] = {
    OURS: ours,
    "plain": plain,
    "sdpa": sdpa,
    "sdpa_repeated": sdpa_repeated,
    "flash": flash,
}


def _with_places(case: AttentionCase, attend: Callable[..., Tensor]) -> Callable[[], Tensor]:
    return lambda: attend(case.query, case.key, case.value, case.places, **case.options)


def _refuse_what_flash_cannot(case: AttentionCase) -> None:
    if case.query.device.type != "cuda":
        raise LeftOutError("PyTorch has it on GPUs alone")
    if case.query.dtype == torch.float32:
        raise LeftOutError("it takes numbers of 16 bits alone")
    if case.spec.tree:
        raise LeftOutError("it has no masks, which trees need")
    _refuse_softcap(case)


def _refuse_softcap(case: AttentionCase) -> None:
    if case.spec.softcap is not None:
        raise LeftOutError("it has no argument for a softcap")
