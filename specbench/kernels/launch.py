"""From LogitRows and Draft to launches: what a kernel can take, and its grid."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from specbench.core import arguments
from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.kernels.emit import GROUP
from specbench.kernels.layout import Block, DeviceMask, Rows
from specbench.kernels.masks import MOST_TILES
from specbench.kernels.verify import verify_kernel
from specbench.kernels.workspace import Workspace

LOGIT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TILE = 2048  # logits a tile: fixed, since a row's sums must not depend on the batch
WARPS = 4
REGISTERS = 64  # a thread: leaves room for enough programs at once to hide the memory's latency
TARGET_PROGRAMS = 1024  # a launch has about this many programs if its tiles suffice
SCORE_CHUNK, EMIT_CHUNK = 32, 8  # the most tiles that a scoring or an emitting program reads
LAG = 2048  # programs between scoring a request and emitting for it: what a large GPU holds at once
GAMMA_LANES = 8  # a kernel for this gamma serves smaller ones too
INTERPRETED = isinstance(verify_kernel, InterpretedFunction)
_INTERPRETER = threading.RLock()


def verify(
    draft: Draft,
    target: LogitRows,
    streams: Streams,
    *,
    block: bool,
    workspace: Workspace,
    out: Verification | None = None,
) -> Verification:
    """Verifies a batch in one launch; see kernels/verify.py.

    It never waits for the device. So the values of ids, counts, positions, seeds and logits are not checked here, and
    values that plain verifiers refuse (core/arguments.py) have a defined result instead. For any values the launch
    ends, reads and writes only the tensors given, emits ids of the vocabulary or PADDING, and leaves the workspace
    ready for the next launch:

    - A drafted id outside of the vocabulary is refused, as is an id of probability 0 under p; the token in its place is
      drawn from max(p - q, 0), where such an id takes nothing from p (one-hot q).
    - Without padding, of n = B * max_draft_tokens drafted tokens every request drafted max_draft_tokens: counts are not
      read. With padding a count below 0 is read as 0, one above max_draft_tokens as that.
    - Of fewer tokens, a count below 0 is read as 0, one above max_draft_tokens as that. Requests take their tokens and
      rows one after another as far as these last; what is left over at the end is not read.
    - A seed counts by all of its 64 bits, a position by its lowest 32 (rng.Streams).
    - A row with NaN or +inf logits that a token was to be drawn from yields PADDING in its place.

    Args:
        target: rows with or without log_normalizer, with or without a mask.
        draft: if its rows have no log_normalizer it is computed here, slowly; a mask of its rows is applied to a copy.
        block: the block rule instead of the token rule.
        out: where to write; token_ids [B, max_draft_tokens + 1] and num_accepted [B], int64, contiguous.

    Raises:
        ArgumentError: names the argument whose shape, dtype, device or stride does not fit.
    """
    check(draft, target, streams)
    batch, gamma, vocabulary = len(draft.num_draft_tokens), draft.max_draft_tokens, target.logits.shape[1]
    device = target.logits.device
    if out is None:
        out = Verification(
            torch.empty((batch, gamma + 1), dtype=torch.int64, device=device),
            torch.empty(batch, dtype=torch.int64, device=device),
        )
    else:
        check_array("out.token_ids", out.token_ids, torch.int64, (batch, gamma + 1), target.logits)
        check_array("out.num_accepted", out.num_accepted, torch.int64, (batch,), target.logits)
    if batch == 0:
        return out
    tile, tiles, tile_lanes = row_tiles(vocabulary)
    lanes = max(GAMMA_LANES, triton.next_power_of_2(gamma))
    known = target.log_normalizer is not None
    most = MOST_TILES.value if target.allowed is not None else tiles
    slots = max(gamma, 1) if block else 1
    score_chunk = tiles if known else min(most, chunk_of(tiles, batch * gamma, SCORE_CHUNK))
    emit_chunk = min(most, chunk_of(tiles, batch * slots, EMIT_CHUNK))
    scoring, emitting = gamma * triton.cdiv(tiles, score_chunk), slots * triton.cdiv(tiles, emit_chunk)
    groups = (lanes if block else 1) * tile_lanes * tile // GROUP.value
    scratch = workspace.scratch(batch, lanes, tile_lanes, groups, device)
    p_rows = rows_of(target, target.log_normalizer, max(score_chunk, emit_chunk) > 1)
    q_rows = p_rows
    if draft.rows is not None:
        q_rows = rows_of(draft.rows.with_mask_applied(), draft.rows.normalizer)
    run(
        verify_kernel,
        batch * (scoring + emitting),
        p_rows,
        q_rows,
        Block(
            draft.token_ids,
            draft.num_draft_tokens,
            streams.seeds,
            streams.positions,
        ),
        scratch,
        out.token_ids,
        out.num_accepted,
        batch,
        gamma,
        len(draft.token_ids),
        vocabulary,
        tiles,
        score_chunk,
        emit_chunk,
        min(batch, triton.cdiv(LAG, max(1, scoring))),
        BLOCK=block,
        HAS_Q=draft.rows is not None,
        KNOWN=known,
        TILE=tile,
        TILES=tile_lanes,
        GAMMA=lanes,
        SLOTS=lanes if block else 1,
        PADDED=draft.padded,
        num_warps=WARPS,
        maxnreg=REGISTERS,
    )
    return out


def run(kernel: Any, programs: int, *args: Any, **options: Any) -> None:
    """Launches a kernel.

    Triton's interpreter replaces functions of triton.language for the whole process while it runs a kernel, so that
    only one thread may run one. NumPy, which it uses, would warn of the NaN and inf that kernels handle.
    """
    if not INTERPRETED:
        kernel[(programs,)](*args, **options)
        return
    with _INTERPRETER, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        kernel[(programs,)](*args, **options)


def row_tiles(vocabulary: int) -> tuple[int, int, int]:
    """Returns logits a tile, tiles a row, and the power of two that bounds the latter; a function of the vocabulary."""
    tile = max(GROUP.value, min(TILE, triton.next_power_of_2(vocabulary)))
    tiles = triton.cdiv(vocabulary, tile)
    return tile, tiles, triton.next_power_of_2(tiles)


def chunk_of(tiles: int, rows: int, most: int) -> int:
    """Returns the tiles of a program: one for few rows, where latency counts, more if the GPU is busy anyway.

    Tokens do not depend on it.
    """
    return max(1, min(tiles, most, tiles * rows // TARGET_PROGRAMS))


def rows_of(rows: LogitRows, normalizer: Tensor | None = None, skips: bool = True) -> Rows:
    """Returns rows as a kernel takes them.

    Args:
        normalizer: None if the kernel does not read it; a pointer that it does not follow takes its place.
        skips: whether a program has several tiles, some of which it may skip by the mask.
    """
    known = rows.temperature if normalizer is None else normalizer
    mask = None
    if rows.allowed is not None:
        allowed = rows.allowed
        mask = DeviceMask(allowed.restricted, allowed.bits, allowed.bits.shape[1], allowed.rows)
    may_skip = 1 if skips and mask is not None else None
    return Rows(rows.logits, rows.logits.stride(0), rows.temperature, rows.cutoff, known, mask, may_skip)


def check(draft: Draft, target: LogitRows, streams: Streams) -> None:
    """Raises ArgumentError for arguments that the kernel cannot take. Reads no device data."""
    arguments.check(draft, target, streams, values=False)
    check_device("target: logits", target.logits.device)
    for name, tensor in arguments.integers(draft, streams):
        if not tensor.is_contiguous():
            raise ArgumentError(f"{name}: stride {tensor.stride(0)}; contiguous integers needed")
    check_layout("target", target)
    if draft.rows is not None:
        check_layout("draft.rows", draft.rows)


def check_device(what: str, device: torch.device) -> None:
    """Raises ArgumentError for a device on which kernels do not run in this process."""
    if (device.type == "cpu") != INTERPRETED:
        remedy = "set TRITON_INTERPRET=1 before Python starts" if device.type == "cpu" else "unset TRITON_INTERPRET"
        raise ArgumentError(f"{what} on {device}; to run the kernels there, {remedy}")


def check_layout(name: str, rows: LogitRows) -> None:
    """Raises ArgumentError for rows in a dtype or with strides that no kernel can take."""
    check_logits(name, rows.logits)
    for part in ("temperature", "cutoff", "log_normalizer"):
        tensor = getattr(rows, part)
        if tensor is not None and not tensor.is_contiguous():
            raise ArgumentError(f"{name}.{part}: stride {tensor.stride(0)}; contiguous floats needed")
    if rows.allowed is not None and not (rows.allowed.bits.is_contiguous() and rows.allowed.restricted.is_contiguous()):
        raise ArgumentError(f"{name}.allowed: bits with strides {rows.allowed.bits.stride()}; contiguous words needed")


def check_logits(name: str, logits: Tensor) -> None:
    """Raises ArgumentError for logits in a dtype or with strides that no kernel can take."""
    if logits.dtype not in LOGIT_DTYPES:
        raise ArgumentError(f"{name}: logits of {logits.dtype}; bfloat16, float16 or float32 needed")
    if logits.dim() != 2:
        raise ArgumentError(f"{name}: logits of shape {tuple(logits.shape)}; (rows, vocabulary) needed")
    if logits.stride(1) != 1 and logits.shape[1] > 1:
        raise ArgumentError(f"{name}: logits with stride {logits.stride(1)} along the vocabulary; 1 needed")


def check_array(name: str, array: Tensor, dtype: torch.dtype, shape: tuple[int, ...], like: Tensor) -> None:
    """Raises ArgumentError for anything but a contiguous tensor of this dtype and shape, on the device of ``like``."""
    if array.dtype != dtype or array.shape != shape or not array.is_contiguous() or array.device != like.device:
        raise ArgumentError(
            f"{name}: {array.dtype} {tuple(array.shape)} on {array.device}, contiguous={array.is_contiguous()}; "
            f"contiguous {dtype} {shape} on {like.device} needed"
        )
