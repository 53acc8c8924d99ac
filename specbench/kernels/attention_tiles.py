"""How attention is shared out among the programs of a launch, from shapes alone.

Nothing is timed, so that all processes with GPUs of one kind choose alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from specbench.kernels.attention import FEWEST_ROWS

ROWS = 64  # at most this many rows (queries times the heads of a group) a program,
ROWS_OF_FLOAT32 = 16  # each of whose matrix products is three;
FEW_OF_FLOAT32 = 2  # and up to this many are faster without matrix products
MOST_KEYS = 128  # a tile,
TILE_BYTES = 2**14  # of keys, and as many of values, that are on their way at once;
MOST_NEW_KEYS = 256  # or these at once, of small heads that are turned too, in few programs
SMALL_HEAD = 128  # bytes
STAGES = 3  # tiles on their way while one is worked on,
STAGES_OF_FEW = 2  # where there are few, so that more programs fit on a multiprocessor
WARPS = 4
FEWEST_KEYS, WARPS_OF_FEWEST = 16, 2  # that a program can read, and the warps for them
SHORTEST_SPLIT = 64  # keys that a program reads at least,
SHORT_SPLIT = 128  # or these, so that there are not too many parts to add up,
FEW_KEYS = 1024  # if more than this many are visible
KEYS_OF_MANY, WARPS_OF_MANY = 32, 2  # a tile of programs that read as many: then more of them fit
MANY = 128  # programs without a split: one for each multiprocessor of an H100 or H200, so that FEW_KEYS are not split
AT_ONCE = 2 * 132  # programs at most, two for each multiprocessor,
SHORT_CONTEXT = 2048  # for up to this many visible keys;
PROGRAMS = 8 * 132  # and for more, so that requests of different lengths keep all multiprocessors busy to the end
PROGRAMS_OF_FLOAT32 = 160  # of one row each: up to this many, they read fewer keys


@dataclass(frozen=True)
class Tiles:
    """What a program takes at once.

    Attributes:
        rows: queries of a request times the heads that share a key head.
        keys: of a split that are loaded together; a power of two.
        stages: tiles of keys on their way while one is worked on.
        warps: of a program.
    """

    rows: int
    keys: int
    stages: int
    warps: int


def lanes(dim: int) -> int:
    """Returns the numbers that a program holds of a head of this size."""
    return max(16, triton.next_power_of_2(dim))


def keys_per_split(query: Tensor, key: Tensor, turned: bool = False) -> int:
    """Returns how many keys a program reads if nothing else is requested.

    Args:
        query: [B, heads, n, dim].
        key: [rows, kv_heads, visible, dim].
        turned: whether queries and keys of new tokens are turned in the same launch.
    """
    rows, visible = _rows(query, key, turned), key.shape[2]
    pairs = _pairs(query, key, rows)
    if not turned or visible > MOST_NEW_KEYS:
        return split_of(pairs, visible)
    if query.dtype != torch.float32 or rows > 1:
        return MOST_NEW_KEYS
    for split in (FEWEST_KEYS, 2 * FEWEST_KEYS):
        if pairs * triton.cdiv(visible, split) <= PROGRAMS_OF_FLOAT32:
            return split
    return SHORTEST_SPLIT


def split_of(pairs: int, visible: int) -> int:
    """Returns how many keys of a cache a program reads: the fewest that need no more programs than are of use.

    Programs that a last, short split adds do not count. Few keys of many requests are not split: there the second
    kernel costs more than reading them one after the other (experiments/decode_speed.md).

    Args:
        pairs: requests times key heads (times tiles of rows).
        visible: leading places of the cache that may be read.
    """
    if visible <= FEW_KEYS and pairs >= min(MANY, visible // 4):
        return FEW_KEYS
    split = SHORTEST_SPLIT if visible <= FEW_KEYS else SHORT_SPLIT
    while pairs * (visible // split) > (AT_ONCE if visible <= SHORT_CONTEXT else PROGRAMS):
        split *= 2
    return split


def tiles(query: Tensor, key: Tensor, value: Tensor, split: int, turned: bool) -> Tiles:
    """Returns the tiles of programs that read ``split`` keys; the other arguments as in :func:`keys_per_split`."""
    rows, visible = _rows(query, key, turned), key.shape[2]
    head_bytes = lanes(max(key.shape[3], value.shape[3])) * key.element_size()
    keys = max(16, min(MOST_KEYS, split, TILE_BYTES // head_bytes))
    programs = _pairs(query, key, rows) * max(1, triton.cdiv(visible, split))
    if turned and head_bytes <= SMALL_HEAD and programs <= AT_ONCE:
        keys = max(16, min(MOST_NEW_KEYS, split))
    stages, warps = STAGES_OF_FEW if visible <= FEW_KEYS // 2 else STAGES, WARPS
    if split >= FEW_KEYS and query.dtype != torch.float32:
        keys, warps = KEYS_OF_MANY, WARPS_OF_MANY
    elif split == FEWEST_KEYS:
        warps = WARPS_OF_FEWEST
    elif turned and keys > MOST_KEYS:
        warps = 2 * WARPS
    return Tiles(rows, keys, stages, warps)


def _rows(query: Tensor, key: Tensor, turned: bool) -> int:
    """How many rows a program has."""
    rows, is_float32 = query.shape[2] * query.shape[1] // key.shape[1], query.dtype == torch.float32
    if turned and is_float32 and rows <= ROWS_OF_FLOAT32:
        return 1
    if is_float32 and rows <= FEW_OF_FLOAT32:
        return rows
    most = ROWS_OF_FLOAT32 if is_float32 else ROWS
    return max(FEWEST_ROWS.value, min(most, triton.next_power_of_2(rows)))


def _pairs(query: Tensor, key: Tensor, rows: int) -> int:
    """Programs without a split: requests times key heads times tiles of rows."""
    return len(query) * key.shape[1] * triton.cdiv(query.shape[2] * query.shape[1] // key.shape[1], rows)
