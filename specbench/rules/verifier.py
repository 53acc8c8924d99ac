"""What a verifier is: the Verifier protocol, and its optional attributes with their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.conf import config_name
from specbench.core.errors import ArgumentError
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules.info import RuleInfo

# A sampler that is itself under test: from true rows and uniforms, the tokens and the rows that it declares them to be
# drawn from.
DraftSampler = Callable[[LogitRows, Float64[Tensor, " n"]], tuple[Int64[Tensor, " n"], LogitRows]]


@runtime_checkable
class Verifier(Protocol):
    """A pure function of the draft, the target's distributions and the random streams.

    It may have the attributes of :class:`Capabilities` as well. :func:`capabilities` reads them.
    """

    @property
    def rule(self) -> str | RuleInfo:
        """The rule that it follows: the name of a registered rule, or a Rule of your own (rules/rule.py).

        Verifiers of one rule emit the same tokens from the same streams, which the agreement tests check. A verifier
        with randomness of its own names a rule of its own, by any other name. ``rules.rule.rule_of`` reads it.
        """
        ...

    @property
    def lossless(self) -> bool:
        """Whether the emitted tokens are declared to be distributed exactly as the target's own.

        The exactness tests check this declaration.
        """
        ...

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """Accepts a prefix of each request's draft, or of one path if it is a tree, and emits one token after it.

        Args:
            draft: n drafted tokens of B requests.
            target: n + B rows, for each request the one after its text and then one after each drafted token.
            streams: the step's uniforms; a verifier uses ACCEPT at offset i for drafted token i and EMIT at offset 0.

        Raises:
            ArgumentError: arguments that do not fit together, or values that no rule can handle; see
                :func:`specbench.core.arguments.check`.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """What a verifier cannot do. ``verify`` raises ArgumentError for a batch that needs it.

    Attributes:
        device: the only kind of device it runs on; None for any.
        ragged: requests may draft different numbers of tokens.
        empty: a request may draft no token.
        batch_invariant: a request's tokens do not depend on the batch or its position there.
        capturable: a call can be captured in a CUDA graph after a first call with the same tensors.
    """

    device: str | None = None
    ragged: bool = True
    empty: bool = True
    batch_invariant: bool = True
    capturable: bool = True


@dataclass(frozen=True)
class Capabilities:
    """The optional attributes of a verifier, and the default of each.

    Attributes:
        interpreted: whether its kernels run through an interpreter, for want of a GPU, so that its times mean nothing;
            None if it has no kernels.
        takes_padded: whether it accepts drafts whose rows are padded (``Draft.padded``).
        takes_trees: whether it accepts drafts that are trees (``Draft.parents``), beside chains.
        takes_masks: whether it applies ``LogitRows.allowed`` of the target. If not, banned tokens have logit -inf.
        synthetic: whether it accepts at given rates, whatever the target's distributions are, so that texts mean
            nothing.
        least_gamma: the lowest gamma with which it can reach its settings.
        draft_tokens: a sampler that is itself under test; it draws the drafts in place of the fixtures.
    """

    limits: Limits = Limits()
    interpreted: bool | None = None
    takes_padded: bool = False
    takes_trees: bool = False
    takes_masks: bool = False
    synthetic: bool = False
    least_gamma: int = 0
    draft_tokens: DraftSampler | None = None


def capabilities(verifier: object) -> Capabilities:
    """The capabilities of a verifier: its attributes, and defaults for the attributes it lacks."""
    names = [field.name for field in dataclasses.fields(Capabilities)]
    return Capabilities(**{name: getattr(verifier, name) for name in names if hasattr(verifier, name)})


def verify(verifier: Verifier, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
    """Returns what a verifier emits. On a GPU its values are not read.

    Raises:
        ArgumentError: it returned no Verification of the draft, or refused its arguments.
    """
    result = verifier.verify(draft, target, streams)
    problem = malformed(result, len(draft.num_draft_tokens), draft.longest + 1, target.logits.device)
    if problem := problem or _impossible(result, draft, target.logits.shape[1]):
        name = config_name("verifier", verifier)
        raise ArgumentError(f"verifier={name}: it returned {problem} Return a specbench.core.Verification.")
    return result


def malformed(result: object, batch: int, width: int, device: torch.device) -> str:
    """What makes a result no Verification of a batch, whatever its values are; "" if nothing does."""
    if not isinstance(result, Verification):
        return f"a {type(result).__name__}."
    shapes = {"token_ids": (batch, width), "num_accepted": (batch,)}
    problems = (unlike(name, getattr(result, name), shape, device) for name, shape in shapes.items())
    return next(filter(None, problems), "")


def unlike(name: str, tensor: object, shape: tuple[int, ...], device: torch.device) -> str:
    """What makes a value no int64 tensor of a shape and device; "" if nothing does."""
    if not isinstance(tensor, Tensor):
        return f"a {type(tensor).__name__} as {name}."
    if tuple(tensor.shape) != shape:
        return f"{name} {list(tensor.shape)}, expected {list(shape)}."
    if tensor.dtype != torch.int64:
        return f"{tensor.dtype} {name}, expected torch.int64. Return {name}.long()."
    return "" if tensor.device == device else f"{name} on {tensor.device}, its arguments are on {device}."


def _impossible(result: Verification, draft: Draft, vocabulary: int) -> str:
    """Which values on the CPU no verification of the draft has; "" for none."""
    if not result.token_ids.is_cpu or not len(draft.num_draft_tokens):
        return ""
    # Of few numbers lists take 3 us, and tensors' operations 8, in steps of 1 ms.
    ids, accepted, drafted = result.token_ids.flatten().tolist(), result.num_accepted.tolist(), draft.num_draft_tokens
    if min(ids) < PADDING or max(ids) >= vocabulary:
        return f"token_ids from {min(ids)} to {max(ids)}; -1 (padding) to {vocabulary - 1} needed."
    if any(not 0 <= count <= most for count, most in zip(accepted, drafted.tolist(), strict=True)):
        return f"num_accepted {accepted} of {drafted.tolist()} drafted tokens."
    return ""
