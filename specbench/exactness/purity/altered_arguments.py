"""Whether a call of verify alters its arguments, or what an earlier call returned."""

import contextlib
from collections.abc import Generator

import torch

from specbench.core.rng import Stream
from specbench.core.types import Verification
from specbench.exactness.guard import VerifierFault, verify
from specbench.exactness.reference import VerifyCall
from specbench.rules.verifier import Verifier

_OWN_TENSORS = "Its arguments are the engine's own; write into tensors of its own."


def check_pure(verifier: Verifier, call: VerifyCall) -> None:
    """Calls the verifier and looks whether it altered what it was given, or a later call what an earlier one returned.

    Raises:
        ArgumentError, VerifierFault: as verify; the latter names the argument that was altered.
    """
    with unaltered(call):
        result = verify(verifier, call)
    kept = Verification(result.token_ids.clone(), result.num_accepted.clone())
    verify(verifier, call.only(torch.arange(len(call.counts), device=call.counts.device).roll(1)))
    if bool(result.differs(kept).any()):
        raise VerifierFault(call.name, "verify overwrites the tensors that it returned before. Return new ones.")


@contextlib.contextmanager
def unaltered(call: VerifyCall) -> Generator[None]:
    """Looks whether a call inside altered its arguments, bit for bit, or the memory between their rows.

    What a call should emit is computed from its arguments afterwards, so that an altered one could hide a wrong token.

    Raises:
        VerifierFault: names the argument that was altered.
    """
    given = {part: tensor for part, tensor in _tensors(call).items() if tensor is not None}
    before = {part: _memory(tensor).clone() for part, tensor in given.items()}
    yield
    touched = [part for part, tensor in given.items() if not torch.equal(_memory(tensor), before[part])]
    if touched:  # arguments may share memory
        altered = [part for part in touched if not torch.equal(_bits(given[part]), _bits(given[part], before[part]))]
        what = altered[0] if altered else f"memory between the rows of {touched[0]}"
        raise VerifierFault(call.name, f"verify altered {what} in place. {_OWN_TENSORS}")


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's storage: comparing numbers would miss 0 for -0, and NaN differs from itself."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _bits(tensor: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
    """The bytes of a tensor's elements, or of those that it would have with the given bytes as its storage."""
    if memory is not None:
        place = tensor.storage_offset(), tensor.shape, tensor.stride()
        tensor = tensor.new_empty(0).set_(memory.untyped_storage(), *place)
    return tensor.contiguous().flatten().view(torch.uint8)


def _tensors(call: VerifyCall) -> dict[str, torch.Tensor | None]:
    draft, target, streams = call.draft, call.target, call.streams
    arguments = {"draft.token_ids": draft.token_ids, "draft.num_draft_tokens": draft.num_draft_tokens}
    for name, rows in (("target", target), ("draft.rows", draft.rows)):
        if rows is not None:
            parts = ("logits", "temperature", "cutoff", "log_normalizer")
            arguments |= {f"{name}.{part}": getattr(rows, part) for part in parts}
            if rows.allowed is not None:
                arguments |= {f"{name}.allowed.{part}": getattr(rows.allowed, part) for part in ("restricted", "bits")}
    arguments |= {"streams.seeds": streams.seeds, "streams.positions": streams.positions}
    return arguments | {f"streams.uniform({stream.name})": streams.uniform(stream) for stream in Stream}
