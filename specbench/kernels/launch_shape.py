"""Launches of the kernels that penalise, bias and ban tokens in place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton
from jaxtyping import Shaped
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.masked_rows import Mask
from specbench.kernels import shape as kernels
from specbench.kernels.launch import check_logits, row_tiles, run
from specbench.kernels.launch_tally import Counts, tally
from specbench.kernels.layout import Asked
from specbench.kernels.think import think_kernel as _think_kernel

# A checker of types would read the kernels' parameters as the launches'.
shape_kernel: Any = kernels.shape_kernel
allow_kernel: Any = kernels.allow_kernel
think_kernel: Any = _think_kernel
BITS = 32  # of allowed_token_ids, in a word
CHUNK = 1024  # tokens of a text that are looked through together
PROGRAMS = 1024  # if so many are enough, each has one row of one part of a request,
TOKENS = 128  # of which it changes so many tokens together;
ELEMENTS = 1024  # if not, each changes so many logits together,
ROWS = 8  # in at most so many rows,
BESIDE = (2, 128)  # or, in a verifier's launch, whose programs have few registers, in so many rows, so many tokens
IN_VERIFIER = True  # whether a verifier's launch penalises and bans in its target's rows, or one before it
_ALONE = {"allowed_token_ids", "thinking_token_budget"}  # what has a kernel of its own


def shape(
    logits: Shaped[Tensor, "n V"], asked: Any, history: Any, counts: Counts | None = None
) -> Shaped[Tensor, "n V"]:
    """Applies penalties, biases and bans to logits in place, and returns them.

    One launch, and one more each for allowed_token_ids, for thinking_token_budget, and, if the history has no tally and
    there are penalties, for that.

    Args:
        logits: bf16, fp16 or fp32, last dimension contiguous, rows at any stride; those of a request stand together, as
            many for each.
        asked: a :class:`specbench.sampling.shaping.Shaping`, a row a row of logits, alike for all rows of a request, or
            a row a request.
        history: the :class:`specbench.sampling.History` of the rows; the room of both is above this one.
        counts: memory to count in; None takes some that is kept for the device's current stream.

    Raises:
        ArgumentError: logits in a dtype or with strides that no kernel can take; not as many rows for each request.
    """
    check_logits("logits", logits)
    n, vocabulary = logits.shape
    if n == 0:
        return logits
    wanted, (rows, step) = asked.asked, _rows_and_step(n, asked, history)
    if "allowed_token_ids" in wanted:
        allow(logits, mask_of(asked, n))
    if wanted - _ALONE:
        _shape(logits, asked, history, counts, rows, step)
    if "thinking_token_budget" in wanted:  # last, since it forces a token whatever bans it
        texts, drafted = history.texts, history.drafted
        run(
            think_kernel, n,
            logits, logits.stride(0), history.offset,
            texts, texts.stride(0), history.text_lengths, drafted, drafted.stride(0),
            asked.thinking_budget, asked.thinking_start, asked.thinking_end, step, rows, vocabulary,
            CHUNK=_chunk(history), TILE=row_tiles(vocabulary)[0], num_warps=4,
        )  # fmt: skip
    return logits


def _rows_and_step(n: int, asked: Any, history: Any) -> tuple[int, int]:
    """Rows of logits, and of parameters, a request."""
    requests = max(1, len(history.texts))
    if n % requests:
        raise ArgumentError(f"history: {requests} requests have {n} rows of logits; as many for each are needed")
    return n // requests, n // requests if len(asked.presence) == n else 1


@dataclass
class Pending:
    """Penalties, biases, bad words and min_tokens that logits still lack, to be applied in place.

    A verifier's launch does so, and spares a launch; whoever else reads the logits calls :meth:`apply` first.

    Args:
        logits, asked, history: as in :func:`shape`; nothing that has a kernel of its own is asked for.

    Raises:
        ArgumentError: see :func:`shape`.
    """

    logits: Shaped[Tensor, "n V"]
    asked: Any
    history: Any
    done: bool = False

    def __post_init__(self) -> None:
        check_logits("logits", self.logits)
        _rows_and_step(len(self.logits), self.asked, self.history)

    def apply(self) -> None:
        """Applies them in a launch, if nobody has."""
        if not self.done:
            shape(self.logits, self.asked, self.history)
            self.done = True  # if the launch was refused, they are still pending

    def begun(self) -> tuple[Asked, tuple[int, ...], dict[str, int], int]:
        """For who applies them in the next launch: asked, sizes and constants of shape_and_verify_kernel, and how many
        programs shape a request."""
        rows, step = _rows_and_step(len(self.logits), self.asked, self.history)
        asked, sizes, constants = on_device(self.logits.shape[1], self.asked, self.history, None, rows, step, BESIDE)
        self.done = True
        return asked, sizes, constants, programs_of(sizes, constants["ROWS"])


def beside(
    logits: Shaped[Tensor, "n V"], asked: Any, history: Any
) -> tuple[Mask | None, Callable[[Tensor, Mask], Tensor], Pending | None]:
    """What stays beside the logits, as MaskedRows has it: the mask, what writes it into them, and what is pending.

    The arguments are those of :func:`shape`, thinking_token_budget excepted.
    """
    mask = mask_of(asked, len(logits)) if "allowed_token_ids" in asked.asked else None
    others, pending = dataclasses.replace(asked, asked=asked.asked - {"allowed_token_ids"}), None
    if others.asked:
        pending = Pending(logits, others, history)
        if not IN_VERIFIER:
            pending.apply()
    return mask, allow, pending


def mask_of(asked: Any, n: int) -> Mask:
    """What allowed_token_ids leaves to n rows of logits; the arguments are those of :func:`shape`."""
    return Mask(asked.restricted, asked.allowed, n // len(asked.restricted))


def allow(logits: Shaped[Tensor, "n V"], mask: Mask) -> Shaped[Tensor, "n V"]:
    """Writes -inf in place to what a mask bans, and returns the logits; one launch.

    Raises:
        ArgumentError: see :func:`shape`.
    """
    check_logits("logits", logits)
    n, vocabulary = logits.shape
    tile, tiles, _ = row_tiles(vocabulary)
    if n > 0:
        run(
            allow_kernel, n * tiles,
            logits, logits.stride(0), mask.restricted, mask.bits, mask.rows, mask.bits.shape[1], vocabulary, tiles,
            TILE=tile, WORDS=max(1, tile // BITS),
        )  # fmt: skip
    return logits


def _chunk(history: Any) -> int:
    return min(CHUNK, triton.next_power_of_2(history.texts.shape[1] + history.drafted.shape[1]))


def _shape(logits: Tensor, asked: Any, history: Any, counts: Counts | None, rows: int, step: int) -> None:
    """Penalties, biases, bad words and min_tokens, of ``rows`` rows a request."""
    arguments, sizes, options = on_device(logits.shape[1], asked, history, counts, rows, step)
    programs = len(history.texts) * programs_of(sizes, options["ROWS"])
    run(
        shape_kernel, programs, logits, logits.stride(0), arguments, *sizes, logits.shape[1], **options, num_warps=4
    )  # fmt: skip


def programs_of(sizes: tuple[int, ...], together: int) -> int:
    """How many programs change the rows of a request; see kernels/shape.py."""
    return sizes[-1] * triton.cdiv(sizes[3], together)


def on_device(
    vocabulary: int,
    asked: Any,
    history: Any,
    counts: Counts | None,
    rows: int,
    step: int,
    most: tuple[int, int] | None = None,
) -> tuple[Asked, tuple[int, ...], dict[str, int]]:
    """What shape_some() of kernels/shape.py takes: its ``asked``, its ``sizes``, and its constants.

    Args:
        most: rows and tokens of a program where there are many; None for those of a launch that does nothing else.
    """
    wanted, texts, drafted, tallied = asked.asked, history.texts, history.drafted, history.tally
    parts, lists, room = 1, (None, None, None), 0
    if "penalties" in wanted:
        if tallied is None or not tallied.is_of(history, vocabulary):
            given = (texts, history.prompt_lengths, history.text_lengths, asked.bias_ids, vocabulary)
            tallied = tally(*given, counts)
        lists, (_, parts, room) = (tallied.found, tallied.listed, tallied.times), tallied.listed.shape
    numbers = (asked.presence, asked.frequency, asked.repetition) if "penalties" in wanted else (None, None, None)
    biases = (asked.bias_ids, asked.bias) if "logit_bias" in wanted else (None, None)
    endings = (asked.min_tokens, asked.ending_ids) if "min_tokens" in wanted else (None, None)
    arguments = Asked(
        history.offset, texts, history.prompt_lengths, history.text_lengths, drafted, *lists, *numbers, *biases,
        asked.bad_words if "bad_words" in wanted else None, *endings,
    )  # fmt: skip
    _, sequences, longest = asked.bad_words.shape
    width = drafted.shape[1]
    sizes = (
        texts.stride(0), drafted.stride(0), step, rows, room, width, asked.bias_ids.shape[1], sequences, longest,
        asked.ending_ids.shape[1], parts,
    )  # fmt: skip
    lanes = triton.next_power_of_2(rows)
    together, tokens = most or (ROWS, ELEMENTS // min(ROWS, lanes))
    if len(texts) * parts * rows <= PROGRAMS:
        together, tokens = 1, TOKENS
    return arguments, sizes, {
        "ROWS": min(together, lanes), "TOKENS": tokens, "WIDTH": triton.next_power_of_2(max(1, width))
    }  # fmt: skip
