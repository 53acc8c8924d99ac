"""``specbench.from_accept``: an accept function of one request as a verifier of batches."""

from __future__ import annotations

import inspect
import operator
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from specbench.core import arguments
from specbench.core.errors import ArgumentError, SpecbenchError
from specbench.core.rng import Stream, Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.rules import RuleInfo
from specbench.rules.verifier import Limits

AcceptFunction = Callable[..., tuple[Any, Any]]
OWN_RULE = "own"
_ARRAYS = ("numpy", "torch")
_FORM = "accept(p, q, token_ids, uniforms) -> (num_accepted, token)"


def from_accept(
    function: AcceptFunction, *, rule: str | RuleInfo = OWN_RULE, lossless: bool = True, arrays: str = "numpy"
) -> AcceptVerifier:
    """Makes a verifier of an accept function that handles one request.

    The verifier works wherever one does: in :func:`specbench.certify`, :func:`specbench.verify` and
    :func:`specbench.decode`. It calls the function once for each request of a batch.

    The function receives, for a request that drafted g tokens (0 or more) of a vocabulary of V:

    - ``p``, float64 [g + 1, V]: the target's distribution at each drafted token, and after the last one.
    - ``q``, float64 [g, V]: the distribution that each token was drafted from; one-hot if a drafter has none.
    - ``token_ids``, int64 [g]: the drafted tokens.
    - ``uniforms``, float64 [g + 1], inside (0, 1): all randomness of the request. ``uniforms[i]`` decides about drafted
      token i, and ``uniforms[-1]`` draws the token after the accepted ones.

    It returns ``(num_accepted, token)``: how many drafted tokens it accepts, 0 to g, and the id of the token that
    follows them. Temperature and truncation are applied to p and q already.

    Why uniforms are an argument: a certificate chooses them. It moves each one until the outcome changes, and so
    measures the accept probabilities of the function to many digits, where random draws leave an error of about
    1 / sqrt(requests). Uniforms have fixed places, because a generator would give the last draw another number after
    each number of accepted tokens. A function of ``(p, q, token_ids)``, with random numbers of its own, works too; its
    certificate only counts outcomes, and ends at best as "not rejected".

    Args:
        function: as above. Its name is the name in certificates.
        rule: "token" or "block" if the function follows that rule's formulas with ``uniforms`` as above, and draws the
            emitted token by the inverse CDF in the order of ids; or a Rule of your own. Only such a function can be
            certified as "lossless". Any other name if not.
        lossless: what the function claims to be.
        arrays: what p, q, token_ids and uniforms are: "numpy" (arrays) or "torch" (tensors on the CPU). NumPy is twice
            as fast on small vocabularies, so that a certificate says more after the same time.

    Returns:
        AcceptVerifier: an object with ``rule``, ``lossless`` and ``verify``.

    Raises:
        ArgumentError: no function of three or four positional arguments, or another argument of a wrong kind.

    Example:
        >>> import numpy as np, specbench
        >>> def mine(p, q, token_ids, uniforms):
        ...     for i, token in enumerate(token_ids):
        ...         if uniforms[i] * q[i, token] >= p[i, token]:
        ...             residual = np.maximum(p[i] - q[i], 0).cumsum()
        ...             return i, np.searchsorted(residual, uniforms[-1] * residual[-1], side="right")
        ...     bonus = p[-1].cumsum()
        ...     return len(token_ids), np.searchsorted(bonus, uniforms[-1] * bonus[-1], side="right")
        >>> certificate = specbench.certify(specbench.from_accept(mine, rule="token"))  # doctest: +SKIP
        >>> print(certificate.headline)  # doctest: +SKIP
        lossless up to 0.0045 a step on the 14 small pairs tried, 0.0029 over D
    """
    if arrays not in _ARRAYS:
        raise ArgumentError(f'arrays={arrays!r}: unknown. Use "numpy" or "torch".')
    if not isinstance(rule, str | RuleInfo):
        raise ArgumentError(f'rule={rule!r}: no name. Use "token", "block", a Rule, or a name of its own')
    if not isinstance(lossless, bool):
        raise ArgumentError(f"lossless={lossless!r}: use True or False")
    return AcceptVerifier(function, rule, lossless, arrays)


class AcceptVerifier:
    """A verifier that calls an accept function once for each request; see :func:`specbench.from_accept`.

    Attributes:
        rule, lossless: as in :class:`specbench.rules.verifier.Verifier`.
        draws_by_itself: whether the function takes no uniforms, so that its random numbers are its own.
    """

    takes_padded = True
    limits = Limits(capturable=False)

    def __init__(self, function: AcceptFunction, rule: str | RuleInfo, lossless: bool, arrays: str):
        self.function, self.rule, self.lossless, self.arrays = function, rule, lossless, arrays
        self.draws_by_itself = _arguments(function) == 3
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def __repr__(self) -> str:
        return f"from_accept({self.__name__}, rule={getattr(self.rule, 'name', self.rule)!r})"

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """See :class:`specbench.rules.verifier.Verifier`.

        Raises:
            ArgumentError: arguments that do not fit together.
            SpecbenchError: the function returned something other than (num_accepted, token) of its request.
        """
        arguments.check(draft, target, streams)
        device, counts = target.logits.device, draft.num_draft_tokens.tolist()
        p_rows = target.probs().cpu()
        q_rows, drafted = draft.probs(p_rows.shape[1]).cpu(), draft.token_ids.cpu()
        # A function that draws by itself does not read the streams: certificates look at who reads them.
        uniforms = None if self.draws_by_itself else _uniforms(streams, draft.max_draft_tokens).cpu()
        p_finite, q_finite = (rows.isfinite().all(dim=1).tolist() for rows in (p_rows, q_rows))
        token_ids = torch.full((len(counts), draft.max_draft_tokens + 1), PADDING)
        num_accepted = torch.zeros(len(counts), dtype=torch.int64)
        # The function gets a copy of the ids, which it may write into.
        tensors: tuple[Any, ...] = (drafted.clone(), p_rows, q_rows, uniforms)
        ids, p, q, u = (
            tensor.numpy() if self.arrays == "numpy" and tensor is not None else tensor for tensor in tensors
        )
        for b, (g, first) in enumerate(zip(counts, draft.first_row.tolist(), strict=True)):
            drafts, scored = slice(first, first + g), slice(first + b, first + b + g + 1)
            usable = [*map(operator.and_, p_finite[scored], [*q_finite[drafts], True]), False].index(False)
            if usable == 0:
                continue  # nothing can be drawn: decoding names the model whose logits are NaN
            if usable <= g:
                _refuse(p_rows[scored][usable:], q_rows[drafts][usable:], drafted[drafts][usable:])
            numbers = () if u is None else (_of_request(u[b], g),)
            returned = self.function(p[scored], q[drafts], ids[drafts], *numbers)
            accepted, token = self._outcome(returned, g, p_rows.shape[1])
            accepted, token = (accepted, token) if accepted < usable else (usable, PADDING)
            token_ids[b, :accepted] = drafted[first : first + accepted]
            token_ids[b, accepted] = token
            num_accepted[b] = accepted
        return Verification(token_ids.to(device), num_accepted.to(device))

    def _outcome(self, returned: object, g: int, vocabulary: int) -> tuple[int, int]:
        """What the function returned as plain numbers."""
        try:
            num_accepted, token = returned  # ty: ignore[not-iterable]
            accepted, emitted = _whole(num_accepted), _whole(token)
        except (TypeError, ValueError):
            accepted, emitted = -1, -1
        if not 0 <= accepted <= g or not 0 <= emitted < vocabulary:
            raise SpecbenchError(
                f"{self.__name__} returned {reprlib.repr(returned)} for a request of {g} drafted tokens; it has "
                f"to return (num_accepted, token). Return two whole numbers: 0 to {g} accepted tokens, and an id from "
                f"0 to {vocabulary - 1}."
            )
        return accepted, emitted


def _whole(value: Any) -> int:
    """The number as Python's own. Raises TypeError for anything but a whole number; true and false are none."""
    if isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise TypeError(value)
    return operator.index(value)


def _arguments(function: object) -> int:
    """How many of (p, q, token_ids, uniforms) a function takes: 3 or 4."""
    if not callable(function) or isinstance(function, type):
        kind = f"the class {function.__name__}" if isinstance(function, type) else f"a {type(function).__name__}"
        raise ArgumentError(f"function: {kind}; give a function {_FORM}")
    for count in (4, 3):
        if takes(function, count):
            return count
    raise ArgumentError(
        f"function: {getattr(function, '__name__', function)}{inspect.signature(function)}; give {_FORM}"
    )


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with `count` positional arguments; True of compiled code without a signature."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def _uniforms(streams: Streams, gamma: int) -> Tensor:
    """Float64 [B, gamma + 1]: a uniform for each drafted token, and one for the emitted token."""
    accept, emit = streams.uniform(Stream.ACCEPT), streams.uniform(Stream.EMIT)
    return torch.cat([accept[:, :gamma], emit[:, :1]], dim=1)


def _refuse(p: Tensor, q: Tensor, token_ids: Tensor) -> None:
    """Replaces the rows of a request from the first that nothing can be drawn from, by some that refuse its tokens."""
    vocabulary = p.shape[1]
    q[:] = one_hot(token_ids, vocabulary)
    p[:] = one_hot(pad((token_ids + 1) % vocabulary, (0, 1)), vocabulary)


def _of_request(row: Any, g: int) -> Any:
    """The uniforms of a request of g drafted tokens, [g + 1], without those of a longer draft."""
    if g + 1 == len(row):
        return row
    return np.append(row[:g], row[-1]) if isinstance(row, np.ndarray) else torch.cat([row[:g], row[-1:]])
