"""How products of few rows are shared out among the programs of a launch, from sizes alone.

Nothing is timed, so that all processes with GPUs of one kind choose alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton

WHOLE = 1024  # inputs of float32 that a program holds at once, for a few rows
FEW_OF_FLOAT32 = 8  # rows of float32 that a program multiplies without matrix units, which take three products for one
SHORT, LIGHT = 256, 2**18  # inputs, or numbers of a matrix: up to these, up to FEW_ROWS rows are multiplied so
PROGRAMS_BY_NUMBER, MOST_BY_NUMBER = 1000, 8  # more programs than these have more outputs, up to this many
SMALL = 2048  # outputs of a small matrix of float32, for one row or two
FEW_OF_HALF = 2  # up to this many rows of 16 bits are multiplied so too, if they are shorter than BROAD
BROAD = 2048
MOST_AT_ONCE = 2**13  # bytes of a row of weights that a program reads at once
FEWEST_ROWS = 16  # that the right operand of the matrix units has
FEW_ROWS = 32  # with more, PyTorch's products of small matrices are as fast, and float32 goes through matrix units
LARGE, LARGE_ROWS = (16384, 1024), 64  # but not with large ones, of these outputs and inputs, and up to these rows
HEAVY = 2**23  # numbers of a matrix that more than one program would have to read for different rows
AT_ONCE = 100  # programs among which rows of smaller ones are shared out
ENOUGH = 64  # programs that together keep the memory of an H100 or H200 busy
MULTIPROCESSORS = 132  # of those
SHARED = 227 * 1024  # bytes that a program may have for tiles on their way, there


@dataclass(frozen=True)
class Tiles:
    """How a product is shared out: numbers a tile, tiles on their way at once, warps, and parts of the inputs.

    ``rows`` is what a program has at most; 0 for all.
    """

    outputs: int
    inputs: int
    stages: int
    warps: int
    splits: int
    rows: int = 0


def tiles(rows: int, outputs: int, inputs: int, itemsize: int = 2, shared: int = SHARED, normed: bool = False) -> Tiles:
    """The sizes that were fastest on an H200 (experiments/decode_speed.md), and that fit.

    Args:
        itemsize: bytes of a number.
        shared: bytes that a program may have for tiles on their way.
        normed: whether a norm is in front; see :func:`by_number`.
    """
    if by_number(rows, inputs, itemsize, 0 if normed else outputs):
        return _tiles_by_number(rows, outputs, inputs, itemsize)
    large, lanes = rows > FEW_ROWS and outputs >= LARGE[0], lanes_for(rows)
    wide, warps = (128, 4) if large else (64, 4)
    fewest, most = 2 if rows <= FEW_ROWS else 4, MULTIPROCESSORS
    columns = triton.cdiv(outputs, wide)
    deep, stages = 128, 8 if rows <= FEW_ROWS else 4
    if rows <= FEW_ROWS and columns > ENOUGH:
        deep, stages = 256, 4
    elif rows > FEW_ROWS and outputs * inputs < HEAVY:
        sizes = 16, 32, 64
        if itemsize > 2:
            sizes, lanes, fewest, most = (16, 32), 32, 2, 2 * MULTIPROCESSORS
            if columns * triton.cdiv(rows, FEWEST_ROWS) < ENOUGH:
                wide, warps, columns = 32, 2, triton.cdiv(outputs, 32)
        lanes = next((taken for taken in sizes if columns * triton.cdiv(rows, taken) <= AT_ONCE), lanes)
    elif large and lanes > LARGE_ROWS:
        deep, stages = 64, 6
    elif rows > FEW_ROWS and not large:
        warps = 8
    deep = deep * 2 // itemsize
    while 2 * (wide + lanes) * deep * itemsize > shared:
        deep //= 2
    programs = columns * triton.cdiv(rows, lanes)
    splits = 1 if programs > ENOUGH else max(1, min(most // programs, inputs // (fewest * deep), 8))
    fitting = shared // ((wide + lanes) * deep * itemsize)
    return Tiles(wide, deep, min(stages, fitting), warps, splits, lanes)


def _tiles_by_number(rows: int, outputs: int, inputs: int, itemsize: int) -> Tiles:
    whole, is_float32 = max(256, triton.next_power_of_2(inputs)), itemsize > 2
    if is_float32 and whole <= 256 and rows <= 2:
        return Tiles(4 if outputs < SMALL else 16 if rows == 1 else 8, whole, 1, 1, 1)
    if is_float32 and whole <= 256:
        at_once, row_tiles = 2, triton.cdiv(rows, FEW_OF_FLOAT32)
        while at_once < MOST_BY_NUMBER and triton.cdiv(outputs, at_once) * row_tiles > PROGRAMS_BY_NUMBER:
            at_once *= 2
        return Tiles(at_once, whole, 1, 1, 1)
    if is_float32 and whole <= WHOLE:
        return Tiles(2 if rows <= FEW_OF_FLOAT32 else 4, whole, 1, 4, 1)
    if is_float32 and rows > 1:
        return Tiles(2, 256, 2, 4, 1) if outputs < 1024 else Tiles(4, 128, 2, 1, 1)
    if inputs * itemsize <= MOST_AT_ONCE:
        return Tiles(2 if inputs >= 2 * BROAD else 4 if inputs >= BROAD else 8, whole, 1, 4, 1)
    return Tiles(8, 512, 4, 4, 1)


def by_number(rows: int, inputs: int, itemsize: int, outputs: int = 0) -> bool:
    """Whether each number is multiplied and added by itself, in place of matrix units.

    Args:
        outputs: 0 behind a norm, which products of several sizes share.
    """
    if itemsize == 2:
        return rows <= (FEW_OF_HALF if inputs < BROAD else 1)
    light = inputs <= SHORT or (inputs <= WHOLE and 0 < outputs * inputs <= LIGHT)
    return rows <= (FEW_ROWS if light else FEW_OF_FLOAT32)


def worth(rows: int, outputs: int, inputs: int, itemsize: int = 2) -> bool:
    """Whether such a product was as fast as PyTorch's on an H200 or H100 (experiments/decode_speed.md)."""
    large = itemsize == 2 and outputs >= LARGE[0] and inputs >= LARGE[1]
    return rows <= (LARGE_ROWS if large else FEW_ROWS)


def lanes_for(rows: int, alone: bool = False) -> int:
    """Rows that a kernel has room for; ``alone``: it multiplies each number by itself."""
    if not alone:
        return max(FEWEST_ROWS, triton.next_power_of_2(rows))
    return rows if rows <= FEW_OF_HALF else FEW_OF_FLOAT32
