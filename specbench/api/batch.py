"""``specbench.verify``: one verification step of a batch, from plain tensors."""

import reprlib
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specbench.api.per_request import Samplings, check_length, derived_seeds, entries, refuse_history, samplings_of
from specbench.api.verifiers import verifier_of
from specbench.core import arguments
from specbench.core.checks import is_whole, plain_number
from specbench.core.errors import ArgumentError
from specbench.core.rng import MAX_SEED, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules.verifier import Verifier
from specbench.rules.verifier import verify as call_verifier
from specbench.sampling import RowParams, logit_rows

# What arguments.check calls the parts of a step, and the argument that each of them was made from.
_ARGUMENTS = {
    "draft.token_ids": "draft_token_ids",
    "draft.num_draft_tokens": "num_draft_tokens",
    "draft.rows": "draft_logits",
    "streams.seeds": "seeds",
    "streams.positions": "positions",
    "target.logits": "target_logits",
    "target": "target_logits",
}
Rows = Tensor | np.ndarray | Sequence[Tensor] | Sequence[np.ndarray]
Numbers = Tensor | np.ndarray | Sequence[int]
Ids = Numbers | Sequence[Sequence[int]] | Sequence[Tensor]


@torch.no_grad()
def verify(
    target_logits: Rows,
    draft_token_ids: Ids,
    draft_logits: Rows | None = None,
    *,
    seeds: int | Numbers,
    positions: int | Numbers,
    num_draft_tokens: Numbers | None = None,
    sampling: Samplings = None,
    draft_sampling: Samplings = None,
    verifier: str | Verifier = "masked",
) -> Verification:
    """Verifies the drafted tokens of B requests: accepts a prefix of each draft and emits one token after it.

    Tensors hold the requests one after the other, as serving engines do; or each argument is a sequence with one entry
    a request (a tensor with one dimension more is one too). Request b drafted n_b tokens, n in all; V is the size of
    the vocabulary.

    Args:
        target_logits: floats [n + B, V], or B times [n_b + 1, V]: the target's logits at each drafted token of a
            request, and after the last one. As the model gave them, before temperature and truncation, as tensors or
            NumPy arrays. -inf rules a token out. Log-probabilities are logits too; probabilities are refused.
        draft_token_ids: whole numbers [n], or B times [n_b].
        draft_logits: floats [n, V], or B times [n_b, V]: what each drafted token was sampled from, so that none has
            probability 0. None if the drafts were not sampled, as those of prompt lookup or the likeliest tokens: q is
            then 1 at the drafted token.
        seeds: of each request, 0 to 2^63 - 1; from a single number every request gets a seed of its own.
        positions: of the first token that this step emits, in the text of each request: how many tokens the text has,
            the prompt included. Seed and position determine the random numbers of a step, so a later step of the
            same text needs its later position. A single number is the position of all.
        num_draft_tokens: n_b [B]; needed if ``draft_token_ids`` holds one request after the other.
        sampling: how the requests sample, one for all or one a request. None is temperature 1, nothing cut off.
        draft_sampling: how the drafts were sampled, if it was otherwise.
        verifier: a name of conf/verifier, such as "masked", "block", "fused" or "external/transformers"; or an object
            with ``verify(draft, target, streams)`` (:class:`specbench.rules.verifier.Verifier`).

    Returns:
        Verification: ``token_ids`` int64 [B, largest n_b + 1] (the accepted tokens, one more, then -1) and
        ``num_accepted`` int64 [B], on the device of ``target_logits``.

    Raises:
        ArgumentError: names the argument that does not fit, and what is needed.
        ConfigError: a verifier whose package is not installed.

    Example:
        >>> import specbench, torch
        >>> target, draft = torch.tensor([[0.0, 9.0], [9.0, 0.0]]), torch.tensor([[0.0, 9.0]])
        >>> found = specbench.verify(target, [1], draft, num_draft_tokens=[1], seeds=7, positions=5)
        >>> found.token_ids.tolist(), found.num_accepted.tolist()
        ([[1, 0]], [1])
    """
    chosen = verifier_of(verifier)
    token_ids, counts = _drafted(draft_token_ids, num_draft_tokens)
    batch, drafted, most = len(counts), sum(counts), max(counts)
    target = _rows("target_logits", target_logits, [count + 1 for count in counts])
    device, vocabulary = target.device, target.shape[1]
    lengths = torch.tensor(counts, dtype=torch.int64, device=device)
    requests = torch.arange(batch, device=device)
    owners, scored = requests.repeat_interleave(lengths), requests.repeat_interleave(lengths + 1)
    params = _params("sampling", sampling, batch, device)
    q_rows: LogitRows | None = None
    if draft_logits is not None:
        of_draft = params if draft_sampling is None else _params("draft_sampling", draft_sampling, batch, device)
        draft_rows = _rows("draft_logits", draft_logits, counts)
        if draft_rows.shape[1] != vocabulary or draft_rows.device != device:
            needed = f"[{drafted}, {vocabulary}] on {device} needed, the vocabulary and the device of target_logits"
            raise ArgumentError(f"draft_logits: {list(draft_rows.shape)} on {draft_rows.device}; {needed}")
        q_rows = logit_rows(draft_rows, of_draft.select(owners))
    elif draft_sampling is not None:
        raise ArgumentError("draft_sampling: given without draft_logits, which it would apply to")
    draft = Draft(token_ids.to(device), q_rows, lengths, max_draft_tokens=most)
    p_rows = logit_rows(target, params.select(scored))
    streams = Streams(_seeds(seeds, batch).to(device), _numbers("positions", positions, batch).to(device), most + 1)
    try:
        arguments.check(draft, p_rows, streams, finite=True)
        arguments.check_sampled(draft)
    except ArgumentError as error:
        raise ArgumentError(_renamed(str(error))) from None
    return call_verifier(chosen, draft, p_rows, streams)


def _drafted(token_ids: Ids, num_draft_tokens: Numbers | None) -> tuple[Tensor, list[int]]:
    """All drafted tokens, int64 [n], and how many each request has."""
    counts = None if num_draft_tokens is None else _integers("num_draft_tokens", num_draft_tokens).tolist()
    if counts is not None and (not counts or min(counts) < 0):
        raise ArgumentError(f"num_draft_tokens: {counts}; a number from 0 for each of at least one request needed")
    if isinstance(token_ids, np.ndarray) and token_ids.dtype.kind in "biuf":
        token_ids = torch.as_tensor(_native("draft_token_ids", token_ids))
    if isinstance(token_ids, Tensor):
        apart = token_ids.dim() > 1
    else:
        token_ids = entries("draft_token_ids", token_ids, "token ids, or a sequence of them for each request")
        apart = not all(isinstance(item, Integral) for item in token_ids)
    if apart:
        lists = [_integers(f"draft_token_ids[{b}]", ids) for b, ids in enumerate(token_ids)]
        lengths = [len(ids) for ids in lists]
        if counts is not None and counts != lengths:
            raise ArgumentError(f"num_draft_tokens: {counts}, but draft_token_ids has {lengths}; leave it out")
        return torch.cat(lists), lengths
    ids = _integers("draft_token_ids", token_ids)
    if counts is None:
        raise ArgumentError(
            f"num_draft_tokens: missing. Say how many of the {len(ids)} draft_token_ids each request has, or give a "
            "sequence of tokens for each request"
        )
    if sum(counts) != len(ids):
        raise ArgumentError(f"num_draft_tokens: {sum(counts)} in all, but draft_token_ids holds {len(ids)} tokens")
    return ids, counts


def _integers(name: str, numbers: Numbers) -> Tensor:
    """int64 [m]."""
    try:
        tensor = torch.as_tensor(_native(name, numbers) if isinstance(numbers, np.ndarray) else numbers)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        problem = f"{name}: no whole numbers of 64 bits in {reprlib.repr(numbers)}"
        raise ArgumentError(f"{problem}. Give a list, an array or a tensor of whole numbers.") from error
    if tensor.numel() == 0 and not isinstance(numbers, Tensor):
        tensor = tensor.long()  # an empty list is one of floats to PyTorch
    if tensor.dim() != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        raise ArgumentError(f"{name}: {tensor.dtype} {list(tensor.shape)}; whole numbers of one dimension needed")
    return tensor.long()


def _rows(name: str, logits: Rows, counts: list[int]) -> Tensor:
    """Logits [sum of counts, V]."""
    logits = _tensor(name, logits)
    if isinstance(logits, Tensor) and logits.dim() == 2:
        rows = logits
    else:
        parts = [
            _tensor(f"{name}[{b}]", part)
            for b, part in enumerate(entries(name, logits, "a tensor [rows, V], or one for each request"))
        ]
        wrong = [b for b, part in enumerate(parts) if not isinstance(part, Tensor) or part.dim() != 2]
        if wrong or not parts:
            shape = list(logits.shape) if isinstance(logits, Tensor) else f"entry {wrong[0]}" if wrong else "empty"
            raise ArgumentError(f"{name}: {shape}; a tensor or array [rows, V], or one for each request, needed")
        lengths = [len(part) for part in parts]
        if lengths != counts:
            raise ArgumentError(f"{name}: {lengths} rows for the requests; {counts} needed")
        if len({(part.shape[1], part.dtype, part.device) for part in parts}) > 1:
            raise ArgumentError(f"{name}: requests differ in vocabulary, dtype or device")
        rows = torch.cat(parts)
    if len(rows) != sum(counts):
        raise ArgumentError(f"{name}: {len(rows)} rows; {sum(counts)} needed, {counts} of the requests in turn")
    if not rows.is_floating_point() or rows.element_size() < 2 or rows.shape[1] == 0:
        raise ArgumentError(f"{name}: {rows.dtype} {list(rows.shape)}; floats of 16 bits or more, [rows, V], needed")
    if rows.layout is not torch.strided or rows.is_meta:
        raise ArgumentError(f"{name}: {rows.layout} on {rows.device}; a dense tensor with values needed")
    if _look_like_probabilities(rows):
        raise ArgumentError(
            f"{name}: the rows look like probabilities, since no number is negative and each row sums to 1. Give the "
            "logits of the model, or the logarithm of these rows"
        )
    return rows


def _tensor(name: str, array: Any) -> Any:
    """A NumPy array as a tensor; anything else as it is."""
    if not isinstance(array, np.ndarray):
        return array
    try:
        return torch.as_tensor(_native(name, array))
    except TypeError as error:
        raise ArgumentError(f"{name}: an array of {array.dtype}; float16, float32 or float64 needed") from error


def _native(name: str, array: np.ndarray) -> np.ndarray:
    """An array in PyTorch's memory layout, which has no other byte order, no negative strides, no read-only memory."""
    if np.ma.isMaskedArray(array):
        raise ArgumentError(f"{name}: a masked array; give its values as an array, -inf at tokens that are ruled out")
    return np.require(array, array.dtype.newbyteorder("="), ["C", "W"])


def _look_like_probabilities(rows: Tensor) -> bool:
    """Whether all of at least one row are non-negative and sum to 1, but for the rounding of their dtype."""
    if len(rows) == 0 or bool((rows[0] < 0).any()):  # as of nearly all logits
        return False
    tolerance = max(1e-4, 2 * torch.finfo(rows.dtype).eps)
    sums = rows.sum(dim=1, dtype=torch.float64)
    return bool((rows >= 0).all()) and bool(((sums - 1).abs() <= tolerance).all())


def _params(name: str, sampling: Samplings, batch: int, device: torch.device) -> RowParams:
    """The sampling parameters of each request. Raises ArgumentError for those that depend on the text."""
    settings = samplings_of(name, sampling, batch, "requests")
    for params in settings:
        refuse_history(name, params, "give logits that it has changed or masked")
    return RowParams.of(settings, device)


def _seeds(seeds: int | Numbers, batch: int) -> Tensor:
    """The seed of each request, int64 [batch]; from a single number every request gets its own."""
    seed = plain_number(seeds)
    if not is_whole(seed):
        return _numbers("seeds", seeds, batch)
    if not 0 <= seed <= MAX_SEED:
        raise ArgumentError(f"seeds: {seed} is outside 0 to {MAX_SEED}")
    return torch.tensor(derived_seeds(seed, batch))


def _numbers(name: str, values: int | Numbers, batch: int) -> Tensor:
    """A number for each request, int64 [batch]."""
    values = plain_number(values)
    numbers = _integers(name, [values] * batch if isinstance(values, int) else values)
    check_length(name, numbers, batch, "requests")
    return numbers


def _renamed(problem: str) -> str:
    """A message of arguments.check, which names the argument at its beginning, with the name that it has here."""
    for internal, name in _ARGUMENTS.items():
        if problem.startswith(internal):
            return name + problem.removeprefix(internal)
    return problem
