"""Made-up verifiers: sound code with another method or attribute, that does something first, or refuses; and rules."""

from collections.abc import Callable

import torch

from specbench.core.errors import ArgumentError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows
from specbench.exactness.zoo.steps import TokenSteps
from specbench.rules.rule import Rule
from specbench.rules.token import formulas as token
from specbench.rules.token.masked import MaskedVerifier
from specbench.sampling import inverse_cdf


def changed(kind: type = TokenSteps, **members: object):
    """A verifier of a kind, with other methods or attributes."""
    return type(f"Changed{kind.__name__}", (kind,), members)()


def acting(act: Callable[[Draft, LogitRows, Streams], object], kind: type = MaskedVerifier, **members: object):
    """A verifier of a kind, with other attributes, that first calls ``act`` with its arguments."""

    def verify(self, draft, target, streams):
        act(draft, target, streams)
        return kind.verify(self, draft, target, streams)

    return changed(kind, verify=verify, **members)


def refusing(kind: type = MaskedVerifier, when: Callable[[Draft], object] = lambda _: True, says: str = "draft: never"):
    """A verifier that does what ``kind`` does, but refuses the drafts of which ``when`` is true."""

    def refuse(draft, *_):
        if when(draft):
            raise ArgumentError(says)

    return acting(refuse, kind)


def made_up_rule(name: str, thresholds: Callable | None = token.thresholds, **more: object) -> Rule:
    """A rule that calls itself lossless: the token rule with other formulas."""
    return Rule(name=name, title=f"rule {name}", guarantee="lossless", thresholds=thresholds, **more)


DROPS = made_up_rule("drops", residual=lambda p, q: torch.where(p - q < 1e-5, 0.0, p - q))
LENIENT = made_up_rule("kind", lambda path: (1.2 * path.ratio).clamp(max=1))


class EmitsAt(TokenSteps):
    """Draws the token that it emits at a function of the right uniforms and of the streams."""

    def __init__(self, uniforms: Callable[[torch.Tensor, Streams], torch.Tensor]):
        self.uniforms = uniforms

    def emit(self, weights, draft, streams, num_accepted):
        return inverse_cdf(weights, self.uniforms(streams.uniform(Stream.EMIT)[:, 0], streams))
