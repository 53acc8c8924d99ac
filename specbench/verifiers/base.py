"""What a verifier is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from specbench.rng import Streams
from specbench.types import Draft, LogitRows, Verification


@runtime_checkable
class Verifier(Protocol):
    """A pure function of the draft, the target's distributions and the random streams.

    Attributes:
        rule: the sampling rule's name. Verifiers of one rule emit the same tokens from the same streams, which the
            agreement tests hold them to; a verifier with randomness of its own has a rule of its own.
        lossless: whether the emitted tokens are declared to be distributed exactly as the target's own. The exactness
            tests hold a verifier to its word.
    """

    rule: str
    lossless: bool

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        """Accepts a prefix of each request's draft and emits one token after it.

        Args:
            draft: n drafted tokens of B requests.
            target: n + B rows, for each request one a drafted token and then the bonus row.
            streams: the step's uniforms; a verifier uses ACCEPT at offset i for drafted token i and EMIT at offset 0.

        Raises:
            ArgumentError: arguments that do not fit together, or values that no rule can handle; see
                :func:`specbench.arguments.check`.
        """
        ...
