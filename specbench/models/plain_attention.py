"""Attention of new tokens to a cache in which every request has its own length, in plain PyTorch.

Also the twin of the kernel, kernels/attention.py. The query heads that share a key head are rows of one matrix, so that
no key is repeated: PyTorch's own attention repeats them over the whole cache if there is a mask.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from specbench.core.trees import MOST_NODES, check_nodes, check_window


def places(
    lengths: Int64[Tensor, " B"], positions: Int64[Tensor, "B n"], ancestors: Bool[Tensor, "B n k"] | None = None
) -> Int64[Tensor, "B 1 n fields"]:
    """Returns the places of n new tokens a request as one tensor, which models pass on to attention like a mask.

    Args:
        lengths: tokens of each request that were cached before; the new ones are written behind them.
        positions: of the new tokens: lengths + i in a chain, lengths + depth in a tree. Windows are counted from them.
        ancestors: in a tree of k tokens so far, at most 64, of which these n are the last, ``ancestors[b, i, j]`` says
            that token j is an ancestor of the i-th of them. A token sees all that was cached before the tree, which is
            what ``lengths`` says then, its ancestors and itself. None: a chain, where each sees all before it.

    Returns:
        Two or three numbers a token: the length, the position, and the ancestors as the bits of an integer.

    Raises:
        ArgumentError: a tree of more than 64 tokens.
    """
    n = positions.shape[1]
    fields = [lengths[:, None].expand(-1, n), positions]
    if ancestors is not None:
        k = check_nodes(ancestors.shape[2])
        j = torch.arange(k, device=ancestors.device)
        bits = ancestors | (j == j[k - n :, None])
        fields.append((bits.long() << j).sum(dim=2))
    return torch.stack(fields, dim=2)[:, None]


def seen(places: Int64[Tensor, "B 1 n fields"], visible: int, window: int | None) -> Bool[Tensor, "B n visible"]:
    """Returns which of the first ``visible`` cached tokens each new token sees.

    Raises:
        ArgumentError: a tree of more tokens than the window has, so that ancestors might lie outside of it.
    """
    j, position = torch.arange(visible, device=places.device), places[:, 0, :, 1:2]
    if places.shape[3] == 2:
        mask = j <= position
    else:
        check_window(window, places.shape[2])
        among = j - places[:, 0, :, :1]
        is_ancestor = (places[:, 0, :, 2:] >> among.clamp(0, 63)) & 1 == 1
        mask = (among < 0) | (is_ancestor & (among < MOST_NODES))
    if window is not None:
        mask &= j > position - window
    return mask


def attend(
    query: Float[Tensor, "B heads n key_dim"],
    key: Float[Tensor, "B kv_heads visible key_dim"],
    value: Float[Tensor, "B kv_heads visible value_dim"],
    places: Int64[Tensor, "B 1 n fields"],
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "B n heads value_dim"]:
    """Attention in the dtype of the query; arguments as in :func:`specbench.kernels.launch_attention.attend`."""
    mask = _mask(places, key.shape[2], window, query.shape[1] // key.shape[1])
    return masked(query, key, value, mask, scale=scale, softcap=softcap, sinks=sinks)


def chosen(query: Tensor, value: Tensor) -> Callable[..., Tensor]:
    """Returns the attention that models run: the kernel if it has code for such tensors, else its twin."""
    if query.is_cuda:
        from specbench.kernels import launch_attention  # here: without a GPU Triton need not be installed

        if launch_attention.takes(query, value):
            return launch_attention.attend
    return attend


def _mask(
    places: Int64[Tensor, "B 1 n fields"], visible: int, window: int | None, group: int
) -> Bool[Tensor, "B 1 rows visible"]:
    """Returns the mask of a group's rows, stored with ``places``, since the layers of a forward pass share it."""
    masks: dict[tuple[int, int | None, int], Tensor] = {}
    if not torch.compiler.is_compiling():
        masks = places.__dict__.setdefault("masks", masks)
    if (visible, window, group) not in masks:
        masks[visible, window, group] = _of_groups(seen(places, visible, window)[:, None], group)
    return masks[visible, window, group]


def _of_groups(mask: Bool[Tensor, "B 1 n visible"], group: int) -> Bool[Tensor, "B 1 rows visible"]:
    # If it is one query, all rows see the same.
    return mask.repeat(1, 1, group, 1) if group > 1 and mask.shape[2] > 1 else mask


def masked(
    query: Float[Tensor, "B heads n key_dim"],
    key: Float[Tensor, "B kv_heads visible key_dim"],
    value: Float[Tensor, "B kv_heads visible value_dim"],
    mask: Bool[Tensor, "#B 1 rows visible"],
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Float[Tensor, " heads"] | None = None,
) -> Float[Tensor, "B n heads value_dim"]:
    """Attention to the keys that a mask lets through, the same ones for all heads.

    Args:
        mask: for the n queries, or for each head of a group in turn.
    """
    batch, heads, n, key_dim = query.shape
    kv_heads, value_dim = key.shape[1], value.shape[3]
    group = heads // kv_heads
    rows = query.reshape(batch, kv_heads, group * n, key_dim)
    if mask.shape[2] == n:
        mask = _of_groups(mask, group)
    if softcap is None and sinks is None:
        out = scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scale)
    else:
        out = _explicit(rows, key, value, mask, scale, softcap, sinks)
    return out.reshape(batch, heads, n, value_dim).transpose(1, 2).contiguous()


def _explicit(
    rows: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """What scaled_dot_product_attention has no argument for; weights in float32 at least, as in transformers."""
    scores = (rows @ key.transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # by -inf a query that sees nothing were NaN
    if sinks is not None:  # a further key for each head, without a value
        heads = sinks.unflatten(0, (key.shape[1], -1)).repeat_interleave(rows.shape[2] * key.shape[1] // len(sinks), 1)
        scores = torch.cat([scores, heads[None, :, :, None].expand(len(scores), -1, -1, -1).to(scores.dtype)], dim=3)
    weights = scores.softmax(dim=3)[..., : key.shape[2]]
    return weights.to(value.dtype) @ value
