"""Launches of the attention kernels, as an operator that torch.compile takes as it is."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from jaxtyping import Float, Int64
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.trees import MOST_NODES, check_window
from specbench.kernels import attention_tiles, dependent
from specbench.kernels.attention import FEWEST_ROWS, split_kernel
from specbench.kernels.attention_parts import combine_kernel
from specbench.kernels.attention_tiles import lanes
from specbench.kernels.launch import LOGIT_DTYPES, check_device, run
from specbench.kernels.tiles import LOG2_E

LARGEST_DIM = 256
FEWEST_NEW = 2  # lanes for the new tokens of a request


@dataclass(frozen=True)
class Turning:
    """What queries and keys go through before attention, in the launch of :func:`attend_new`.

    Attributes:
        cos, sin: of each position, in the form in which transformers' Llama has them.
        q_norm, k_norm: weights of an RMSNorm of each head before it is turned (Qwen3); None for no norm.
        epsilon: of these norms.
    """

    cos: Float[Tensor, "positions dim"]
    sin: Float[Tensor, "positions dim"]
    q_norm: Float[Tensor, " dim"] | None = None
    k_norm: Float[Tensor, " dim"] | None = None
    epsilon: float = 0.0


def takes(query: Tensor, value: Tensor) -> bool:
    """Whether the kernel has code for this dtype and these sizes of heads."""
    return query.dtype in LOGIT_DTYPES and max(query.shape[3], value.shape[3]) <= LARGEST_DIM


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
    split: int | None = None,
) -> Float[Tensor, "B n heads value_dim"]:
    """Attention of n new tokens a request to the cache that holds them and what precedes them, in one or two launches.

    For one ``split`` the result of a request is the same bit for bit in any batch, at any place in it, and however many
    places are visible. The split that is chosen if none is given depends on the batch and on ``visible``, and another
    one changes the last bits.

    Args:
        query: bfloat16, float16 or float32, at any strides but 1 along the last dimension.
        key, value: likewise, of the query's dtype; sums are float32.
        places: where the queries stand; see :func:`specbench.models.plain_attention.places`. They are read on the
            device; if one is out of range, nothing outside of the tensors is read or written.
        scale: factor of the products of queries and keys.
        window: tokens that a query sees, itself among them; None sees all.
        softcap: a scaled product s becomes ``softcap * tanh(s / softcap)`` (Gemma 2, arXiv 2408.00118).
        sinks: logits of a key without value, one a head (gpt-oss).
        split: keys that a program reads.

    Returns:
        Weighted values in the query's dtype, contiguous.

    Raises:
        ArgumentError: names the argument that does not fit.
    """
    _check_tensors(query, key, value, split)
    _check_places(query, places, window, sinks)
    split = split or attention_tiles.keys_per_split(query, key)
    arguments = (query, key, value, places, sinks, scale, window or 0, softcap or 0.0, split)
    if torch.compiler.is_compiling():
        return torch.ops.specbench.attention(*arguments)
    return _launched(*arguments)  # without the way through the dispatcher, which every layer would wait for


def attend_new(
    new: Float[Tensor, "B n projections"],
    key: Float[Tensor, "rows kv_heads visible dim"],
    value: Float[Tensor, "rows kv_heads visible dim"],
    lengths: Int64[Tensor, " B"],
    turning: Turning,
    scale: float,
    split: int | None = None,
    cache_rows: Int64[Tensor, " B"] | None = None,
) -> Float[Tensor, "B n hidden"]:
    """Turns the queries and keys of n new tokens, writes keys and values to the cache, and attends, in few launches.

    The kernel in front may write ``new`` alone: lengths, tables and the cache are read before it has ended.

    Args:
        new: the heads' queries, then their keys, then their values, of tokens that follow one another.
        key, value: the leading places of a cache, which are read and written.
        lengths: cached tokens of each request. Tokens whose place is not among the visible ones are not written.
        scale, split: see :func:`attend`.
        cache_rows: the row of the cache that each request has, all different and within it; None is one after another.

    Returns:
        Weighted values of all heads, in the dtype of ``new``.

    Raises:
        ArgumentError: names the argument that does not fit.
    """
    _check_new(new, key, value, lengths, turning, cache_rows)
    batch, (_, kv_heads, _, dim) = len(new), key.shape
    heads = new.shape[2] // dim - 2 * kv_heads
    query = new.view(batch, -1, heads + 2 * kv_heads, dim)[:, :, :heads].transpose(1, 2)
    places = lengths.view(batch, 1, 1, 1)
    _check_tensors(query, key, value, split)
    split = split or attention_tiles.keys_per_split(query, key, turned=True)
    return _launched(query, key, value, places, None, scale, 0, 0.0, split, turning, new, cache_rows).flatten(2)


def _launched(query, key, value, places, sinks, scale, window, softcap, split, turning=None, new=None, cache_rows=None):
    batch, heads, n, key_dim = query.shape
    _, kv_heads, visible, value_dim = value.shape
    group = heads // kv_heads
    out = _output(query, value)
    if out.numel() == 0:
        return out
    turned = turning is not None
    tiles = attention_tiles.tiles(query, key, value, split, turned)
    row_tiles, splits = triton.cdiv(n * group, tiles.rows), max(1, triton.cdiv(visible, split))
    left = 0 if splits == 1 else batch * heads * n * splits
    parts = torch.empty(left * value_dim, dtype=torch.float32, device=query.device)
    exponents = torch.empty(left, dtype=torch.float32, device=query.device)
    early = dependent.options(query.device)
    turns = (None,) * 4 if turning is None else (turning.cos, turning.sin, turning.q_norm, turning.k_norm)
    turns += (cache_rows,)
    pointers = [key if tensor is None else tensor for tensor in turns]
    fewest_new = FEWEST_NEW if tiles.rows < FEWEST_ROWS.value else FEWEST_ROWS.value
    run(
        split_kernel, batch * kv_heads * splits * row_tiles,
        query if new is None else new, *query.stride()[:3], key, *key.stride()[:3], value, *value.stride()[:3], places,
        key if sinks is None else sinks, out, parts, exponents, scale / softcap if softcap else scale * LOG2_E.value,
        softcap, n, visible, window, split, splits, row_tiles, *pointers, turning.epsilon if turning else 0.0,
        HEADS=kv_heads, GROUP=group, FIELDS=places.shape[3], KEY_DIM=key_dim, KEY_LANES=lanes(key_dim),
        VALUE_DIM=value_dim, VALUE_LANES=lanes(value_dim), ROWS=tiles.rows, KEYS=tiles.keys, STAGES=tiles.stages,
        WINDOW=window > 0, SOFTCAP=softcap > 0, SINKS=sinks is not None, WHOLE=splits == 1, TURNED=turned,
        NORM=turns[2] is not None, NEW=max(fewest_new, triton.next_power_of_2(n)),
        AHEAD=turned and split <= tiles.keys, PLACED=cache_rows is not None, num_warps=tiles.warps, **early,
    )  # fmt: skip
    if splits > 1:
        run(
            combine_kernel, batch * n * heads,
            parts, exponents, key if sinks is None else sinks, out, n, splits,
            HEADS=kv_heads, GROUP=group, VALUE_DIM=value_dim, VALUE_LANES=lanes(value_dim),
            LANES=triton.next_power_of_2(splits), SINKS=sinks is not None, num_warps=attention_tiles.WARPS, **early,
        )  # fmt: skip
    return out


_attention = torch.library.custom_op(
    "specbench::attention",
    _launched,
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor places, Tensor? sinks, float scale, int window, "
    "float softcap, int split) -> Tensor",
)


@_attention.register_fake
def _(query, key, value, places, sinks, scale, window, softcap, split):
    return _output(query, value)


def _output(query: Tensor, value: Tensor) -> Tensor:
    shape = (len(query), query.shape[2], query.shape[1], value.shape[3])
    return torch.empty(shape, dtype=query.dtype, device=query.device)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, split: int | None) -> None:
    """Raises ArgumentError for tensors or a split that the kernels cannot take. Reads no device data."""
    device = query.device
    check_device("query:", device)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dtype not in LOGIT_DTYPES or tensor.dtype != query.dtype or tensor.device != device:
            raise ArgumentError(
                f"{name}: {tensor.dtype} on {tensor.device}; bfloat16, float16 or float32 like the others needed"
            )
        if tensor.shape[3] > LARGEST_DIM or tensor.stride(3) != 1:
            raise ArgumentError(
                f"{name}: {tensor.shape[3]} numbers a head at stride {tensor.stride(3)}; "
                f"at most {LARGEST_DIM} at stride 1 needed"
            )
    if query.shape[1] % key.shape[1]:
        raise ArgumentError(f"query: {query.shape[1]} heads; a multiple of the {key.shape[1]} of the keys needed")
    if split is not None and (split < attention_tiles.FEWEST_KEYS or split & (split - 1)):
        raise ArgumentError(f"split: {split}; a power of two of at least {attention_tiles.FEWEST_KEYS} needed")


def _check_places(query: Tensor, places: Tensor, window: int | None, sinks: Tensor | None) -> None:
    """Raises ArgumentError for what else of :func:`attend` the kernels cannot take. Reads no device data."""
    device, n, tree = query.device, query.shape[2], places.shape[3] == 3
    if places.shape[3] not in (2, 3) or not places.is_contiguous() or places.device != device:
        raise ArgumentError(
            f"places: shape {tuple(places.shape)} on {places.device}; "
            f"a contiguous one with 2 or 3 fields on {device} needed"
        )
    if tree and n > MOST_NODES:
        raise ArgumentError(f"places: a tree of {n} tokens; at most {MOST_NODES} can be attended to at once")
    if window is not None and window < 1:
        raise ArgumentError(f"window: {window}; at least 1 needed")
    if tree:
        check_window(window, n)
    if sinks is not None and (sinks.device != device or not sinks.is_contiguous()):
        raise ArgumentError(f"sinks: on {sinks.device}; contiguous on {device} needed")


def _check_new(
    new: Tensor, key: Tensor, value: Tensor, lengths: Tensor, turning: Turning, cache_rows: Tensor | None
) -> None:
    """Raises ArgumentError for what else of :func:`attend_new` the kernels cannot take. Reads no device data."""
    _, kv_heads, visible, dim = key.shape
    heads, rest = divmod(new.shape[2] - 2 * kv_heads * dim, dim)
    if value.shape != key.shape or rest or heads < 1 or dim % 2 or not new.is_contiguous():
        raise ArgumentError(
            f"new: {new.shape[2]} numbers a token with keys of shape {tuple(key.shape)} and values of shape "
            f"{tuple(value.shape)}; contiguous queries, keys and values of heads of one even size needed"
        )
    if cache_rows is None and len(key) != len(new):
        raise ArgumentError(f"key: {len(key)} rows for {len(new)} requests; give cache_rows, or one a request")
    for name, numbers in {"lengths": lengths, "cache_rows": cache_rows}.items():
        if numbers is not None and (
            numbers.shape != (len(new),)
            or numbers.device != new.device
            or numbers.dtype != torch.int64
            or not numbers.is_contiguous()
        ):
            form = f"{numbers.dtype} {tuple(numbers.shape)} on {numbers.device}"
            raise ArgumentError(f"{name}: {form}; contiguous torch.int64 ({len(new)},) on {new.device} needed")
    for table in (turning.cos, turning.sin):
        if not table.is_contiguous() or table.shape[1:] != (dim,) or len(table) < visible:
            raise ArgumentError(f"turning: a table of shape {tuple(table.shape)}; [{visible}, {dim}] at least needed")
    norms = [norm for norm in (turning.q_norm, turning.k_norm) if norm is not None]
    if len(norms) == 1 or any(norm.shape != (dim,) for norm in norms):
        raise ArgumentError(f"turning: norms of {[len(norm) for norm in norms]} numbers; none or two of {dim} needed")
