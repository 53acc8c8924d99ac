"""What may be handed to a verifier: one check of a step's arguments, for every verifier and for the kernels' launch."""

import torch
from torch import Tensor

from specbench.core.errors import ArgumentError
from specbench.core.mask import Mask
from specbench.core.rng import MAX_POSITION, MAX_SEED, Streams
from specbench.core.types import Draft, LogitRows

_ERROR = 2  # what torch.cuda.get_sync_debug_mode() says where to wait for the device is an error


def check(
    draft: Draft, target: LogitRows, streams: Streams, *, values: bool = True, finite: bool = False, trees: bool = False
) -> None:
    """Refuses what no verifier can take, before anything is computed from it.

    First whatever the host knows: shapes, dtypes, devices and plain numbers. That reads no device data. Then the
    values, which waits for the device once. They are left out while a CUDA graph is captured, and where
    ``torch.cuda.set_sync_debug_mode("error")`` forbids to wait: there the caller has to vouch for them.

    Args:
        values: whether ids, counts, positions and seeds are looked at.
        finite: whether NaN and infinite logits are refused too, which reads all logits: for tests and debugging.

    Raises:
        ArgumentError: names the argument and what is allowed; of a value, its index too.
    """
    if draft.parents is not None and not trees:
        raise ArgumentError("draft.parents: a tree; this verifier takes chains alone. Use verifier=tree.")
    device = target.logits.device
    check_rows("target", target, device)
    for name, tensor in integers(draft, streams):
        if tensor.dtype != torch.int64 or tensor.dim() != 1:
            raise ArgumentError(f"{name}: {tensor.dtype} {tuple(tensor.shape)}; int64 of one dimension needed")
        if tensor.device != device:
            raise _elsewhere(name, tensor, device)
    _check_lengths(draft, target, streams)
    if draft.rows is not None:
        check_rows("draft.rows", draft.rows, device)
        expected = (len(draft.token_ids), target.logits.shape[1])
        if draft.rows.logits.shape != expected:
            raise ArgumentError(
                f"draft.rows: logits of shape {tuple(draft.rows.logits.shape)}; {expected} needed, one row for each "
                "drafted token"
            )
    if (values or finite) and _may_wait(device):
        _check_values(draft, target, streams)
        if finite:
            _check_finite(draft, target)


def check_rows(name: str, rows: LogitRows, device: torch.device) -> None:
    """Refuses rows that are no matrix of logits with one temperature, cutoff and normaliser each. Reads no device data.

    Raises:
        ArgumentError: names the part whose shape, dtype or device does not fit.
    """
    logits = rows.logits
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ArgumentError(
            f"{name}.logits: shape {tuple(logits.shape)}; (rows, vocabulary) needed, the rows of a request after those "
            "of the one before"
        )
    if not logits.is_floating_point():
        raise ArgumentError(f"{name}.logits: {logits.dtype}; floats needed")
    if logits.device != device:
        raise _elsewhere(f"{name}.logits", logits, device)
    shape = logits.shape[:1]
    for part in ("temperature", "cutoff", "log_normalizer"):
        tensor = getattr(rows, part)
        if tensor is None:
            continue
        if tensor.shape != shape or not tensor.is_floating_point():
            raise ArgumentError(
                f"{name}.{part}: {tensor.dtype} {tuple(tensor.shape)}; floats {tuple(shape)} needed, one for each row "
                "of logits"
            )
        if tensor.device != device:
            raise _elsewhere(f"{name}.{part}", tensor, device)
    if rows.allowed is not None:
        _check_mask(f"{name}.allowed", rows.allowed, len(rows), device)


def _check_mask(name: str, mask: Mask, rows: int, device: torch.device) -> None:
    for part, dtype, dims in (("restricted", torch.bool, 1), ("bits", torch.int32, 2)):
        tensor = getattr(mask, part)
        if tensor.dtype != dtype or tensor.dim() != dims or len(tensor) * mask.rows < rows:
            raise ArgumentError(
                f"{name}.{part}: {tensor.dtype} {tuple(tensor.shape)}; {dtype}, and a set for every {mask.rows} of "
                f"{rows} rows needed"
            )
        if tensor.device != device:
            raise _elsewhere(f"{name}.{part}", tensor, device)


def _elsewhere(name: str, tensor: Tensor, device: torch.device) -> ArgumentError:
    return ArgumentError(f"{name}: on {tensor.device}, but target.logits is on {device}")


def integers(draft: Draft, streams: Streams) -> tuple[tuple[str, Tensor], ...]:
    """Returns the integer arguments of a verification, each with its name for messages."""
    return (
        ("draft.token_ids", draft.token_ids),
        ("draft.num_draft_tokens", draft.num_draft_tokens),
        ("streams.seeds", streams.seeds),
        ("streams.positions", streams.positions),
    )


def _check_lengths(draft: Draft, target: LogitRows, streams: Streams) -> None:
    n, requests, gamma = draft.token_ids.numel(), draft.num_draft_tokens.numel(), draft.max_draft_tokens
    for name, tensor in (("streams.seeds", streams.seeds), ("streams.positions", streams.positions)):
        if tensor.numel() != requests:
            raise ArgumentError(f"{name}: {tensor.numel()} for a draft of {requests} requests; one a request needed")
    if gamma < 0:
        raise ArgumentError(f"draft.max_draft_tokens: {gamma}; 0 or more needed")
    if streams.width < gamma + 1:
        raise ArgumentError(f"streams.width: {streams.width}; max_draft_tokens={gamma} needs {gamma + 1} or more")
    if n > requests * gamma:
        raise ArgumentError(
            f"draft.token_ids: {n} tokens; {requests} requests draft {requests * gamma} at most, by "
            f"max_draft_tokens={gamma}"
        )
    if draft.padded and n != requests * gamma:
        raise ArgumentError(
            f"draft.token_ids: {n} tokens; a padded draft of {requests} requests holds {requests * gamma}, by "
            f"max_draft_tokens={gamma}"
        )
    if draft.parents is not None and (draft.parents.shape != (n,) or draft.parents.dtype != torch.int64):
        raise ArgumentError(
            f"draft.parents: {draft.parents.dtype} {tuple(draft.parents.shape)}; int64 {(n,)} needed, one for each "
            "drafted token"
        )
    if (draft.parents is None) != (draft.depth is None):
        raise ArgumentError(f"draft.depth: {draft.depth}; a tree has both parents and depth, a chain neither")
    if len(target) != n + requests:
        raise ArgumentError(f"target: {len(target)} rows; {n} draft tokens of {requests} requests need {n + requests}")


def _may_wait(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    return not torch.cuda.is_current_stream_capturing() and torch.cuda.get_sync_debug_mode() != _ERROR


def _check_values(draft: Draft, target: LogitRows, streams: Streams) -> None:
    highest = (target.logits.shape[1] - 1, draft.max_draft_tokens, MAX_SEED, MAX_POSITION)
    ranges = [
        (*bounds, high) for bounds, high in zip(integers(draft, streams), highest, strict=True) if bounds[1].numel()
    ]
    ends, total = _ends_and_sum([tensor for _, tensor, _ in ranges], draft.num_draft_tokens)
    for (name, tensor, high), (smallest, largest) in zip(ranges, ends, strict=True):
        if smallest < 0 or largest > high:  # only now it is worth it to find out where
            index = int(((tensor < 0) | (tensor > high)).nonzero()[0])
            raise ArgumentError(f"{name}[{index}] = {int(tensor[index])} is outside 0 to {high}")
    if draft.parents is not None:
        _check_parents(draft, draft.parents)
    if not draft.padded and total != draft.token_ids.numel():
        raise ArgumentError(
            f"draft.num_draft_tokens: {total} in all, but draft.token_ids holds {draft.token_ids.numel()} tokens"
        )


def first_outside(token_ids: Tensor, vocabulary: int) -> int | None:
    """Returns the index of the first id outside of the vocabulary, if there is one. Waits for the device if it may."""
    if not len(token_ids) or not _may_wait(token_ids.device):
        return None
    smallest, largest = torch.stack(token_ids.aminmax()).tolist()
    if smallest >= 0 and largest < vocabulary:
        return None
    return int(((token_ids < 0) | (token_ids >= vocabulary)).nonzero()[0])


def _check_parents(draft: Draft, parents: Tensor) -> None:
    first = draft.first_row[draft.request_of_row]
    places = torch.arange(len(parents), device=parents.device) - first
    bad, above = (parents < -1) | (parents >= places), places
    for _ in range(draft.longest):
        above = torch.where(above >= 0, parents[(first + above).clamp(0, len(parents) - 1)], -1)
    if not (bad | (above >= 0)).any():
        return
    if bad.any():
        index = int(bad.nonzero()[0])
        raise ArgumentError(
            f"draft.parents[{index}] = {int(parents[index])}; token {int(places[index])} of its request follows the "
            "text (-1) or a token of the same request before it"
        )
    index = int((above >= 0).nonzero()[0])
    raise ArgumentError(f"draft.depth: {draft.depth}; token {int(places[index])} of its request is deeper in the tree")


def _ends_and_sum(tensors: list[Tensor], counts: Tensor) -> tuple[list[tuple[int, int]], int]:
    """The smallest and the largest of each tensor, and the sum of counts; from a GPU in one copy, which is one wait."""
    pairs = (tensor.aminmax() for tensor in tensors)
    if counts.is_cuda:
        total, *flat = torch.stack([counts.sum(), *(end for pair in pairs for end in pair)]).tolist()
        return list(zip(flat[::2], flat[1::2], strict=True)), total
    # On a CPU no read waits, and to stack takes longer than to read.
    return [(int(smallest.item()), int(largest.item())) for smallest, largest in pairs], int(counts.sum().item())


def _check_finite(draft: Draft, target: LogitRows) -> None:
    for name, rows in (("target", target), ("draft.rows", draft.rows)):
        if rows is not None and not rows.finite().all():
            raise ArgumentError(f"{name}: row {int((~rows.finite()).nonzero()[0])} holds NaN or infinite logits")


def check_sampled(draft: Draft) -> None:
    """Refuses drafted tokens that the draft's own distribution q gives no probability, which were not sampled from it.

    A verifier would accept them wherever p is above 0: texts would not be the target's.

    Raises:
        ArgumentError: names the first such token.
    """
    if draft.rows is None:
        return
    unlikely = draft.rows.prob(draft.token_ids) == 0
    if draft.padded:
        unlikely &= draft.drafted.flatten()
    if unlikely.any():
        index = int(unlikely.nonzero()[0])
        raise ArgumentError(
            f"draft.token_ids[{index}] = {int(draft.token_ids[index])} has probability 0 in its draft's distribution, "
            "and was not sampled from it. Give the logits and sampling parameters that it was sampled with"
        )
