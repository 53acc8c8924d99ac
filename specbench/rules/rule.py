"""A rule with its formulas: what it does in a step, given p and q of the drafted tokens.

A rule compares a uniform with a threshold for each drafted token. The comparisons decide how many tokens are accepted.
One more token is drawn: from the target after a whole draft, else from a residual. The law of a step, the tokens for
given uniforms, a plain verifier and the explanation of a difference by rounding all follow from these formulas. The
result for a request does not depend on other requests, nor on the width of the batch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core import arguments
from specbench.core.checks import nearest
from specbench.core.conf import config_name
from specbench.core.errors import ArgumentError, ConfigError
from specbench.core.rng import Stream, Streams
from specbench.core.types import Draft, LogitRows, Verification
from specbench.rules import batched
from specbench.rules.draft_path import DraftPath, DraftPathBatch
from specbench.rules.forms import FORMS
from specbench.rules.formula import check_formulas
from specbench.rules.info import RULES, RuleInfo
from specbench.rules.verifier import Verifier
from specbench.sampling import inverse_cdf

# How the comparisons u_i < threshold_i decide: all tokens before the first i that fails are accepted (each token is
# decided on alone), or all tokens up to the last i that succeeds (prefixes are accepted as wholes).
FIRST_REFUSAL, LAST_SUCCESS = "first refusal", "last success"
Decides = Literal["first refusal", "last success"]
DecisionErrors = Callable[[Draft, LogitRows, Streams, Tensor], Tensor]
_ROUNDING = 1e-9  # of a threshold that is 1, in float64
_MISSPELLED = 0.88  # likeness to the name of a registered rule, from which on a word is a misspelling: a letter of five


def positive_part(p: Float64[Tensor, "m V"], q: Float64[Tensor, "m V"]) -> Float64[Tensor, "m V"]:
    """max(p - q, 0), the residual of the token and the block rule."""
    return (p - q).clamp(min=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule(RuleInfo):
    """A :class:`specbench.rules.RuleInfo` with formulas. A rule without known formulas has no ``thresholds``.

    Attributes:
        thresholds: from a DraftPath: [m, gamma]. Token i passes if u_i is below threshold i; u_i is the uniform of
            stream ACCEPT at offset i.
        decides: how the comparisons decide together.
        prefix_weights: from a DraftPath: [m, gamma + 1], the factors of p in the residual after 0, 1, ... accepted
            tokens. None for 1: the residual then depends on the row alone.
        residual: from the weighted p and from q: [m, V], not normalised. The token after the accepted ones is drawn
            from it by ``inverse_cdf`` with the uniform of stream EMIT at offset 0, unless all were accepted. Where it
            is 0 everywhere, which comes of rounding, the token is drawn from p, as after a whole draft.
        decision_errors: from draft, target, streams and accepted lengths: [B], the least relative error of p and q
            that leads to these lengths. None: the least relative error of the thresholds.
        reference: plain code that follows the rule, in float64. None: a ReferenceVerifier.

    Raises:
        ArgumentError: a reference without thresholds; ``decides`` that is none; see RuleInfo.
    """

    thresholds: Callable[[DraftPath], Tensor] | None = None
    decides: Decides = FIRST_REFUSAL
    prefix_weights: Callable[[DraftPath], Tensor] | None = None
    residual: Callable[[Tensor, Tensor], Tensor] = positive_part
    decision_errors: DecisionErrors | None = None
    reference: Verifier | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decides not in get_args(Decides):
            remedy = f"Give {' or '.join(map(repr, get_args(Decides)))}."
            raise ArgumentError(f"rule={self.name}: decides is {self.decides!r}. {remedy}")
        check_formulas(self, FORMS)
        if self.thresholds is None and self.reference is not None:
            raise ArgumentError(
                f"rule={self.name}: a reference without thresholds, so that no difference from it could be explained. "
                "Give the rule its thresholds."
            )
        # A copy with other formulas (dataclasses.replace) has the reference of the rule that was copied.
        if self.thresholds is not None and isinstance(self.reference, ReferenceVerifier | None):
            object.__setattr__(self, "reference", ReferenceVerifier(self))

    @classmethod
    def of(cls, info: RuleInfo, **formulas: Any) -> Rule:
        """The rule of a RuleInfo, with formulas."""
        return cls(**vars(info), **formulas)

    @property
    def has_law(self) -> bool:
        """Whether its formulas are known."""
        return self.thresholds is not None

    def limits(self, path: DraftPath) -> Float64[Tensor, "m gamma"]:
        """The thresholds, 0 behind each draft. Raises ArgumentError for a rule whose formulas are not known."""
        if self.thresholds is None:
            raise ArgumentError(f"rule={self.name}: its formulas are not known here. Give it thresholds.")
        thresholds = self.thresholds(path)
        places = torch.arange(thresholds.shape[1], device=thresholds.device)
        return torch.where(places < path.counts[:, None], thresholds, 0.0)

    def chances(self, path: DraftPath) -> Float64[Tensor, "m gamma"]:
        """The probability that each uniform is below its threshold, which may be above 1 or below 0.

        A threshold that only rounding puts above 1 stays: published numbers have its last digits.
        """
        limits = self.limits(path)
        return torch.where((limits < 0) | (limits > 1 + _ROUNDING), limits.clamp(0, 1), limits)

    def num_accepted(
        self, thresholds: Float64[Tensor, "m gamma"], u: Float64[Tensor, "m gamma"]
    ) -> Int64[Tensor, " m"]:
        """The accepted length of each draft for given uniforms."""
        passed = (u < thresholds).long()
        if self.decides == FIRST_REFUSAL or passed.shape[1] == 0:
            return passed.cumprod(dim=1).sum(dim=1)
        return (passed * torch.arange(1, passed.shape[1] + 1, device=u.device)).amax(dim=1)

    def num_decided(
        self, num_accepted: Int64[Tensor, " B"], num_draft_tokens: Int64[Tensor, " B"]
    ) -> Int64[Tensor, " B"]:
        """The number of drafted tokens of each request that a uniform decided on."""
        if self.decides == LAST_SUCCESS:
            return num_draft_tokens  # every comparison counts
        return torch.minimum(num_accepted + 1, num_draft_tokens)

    def weights_after(self, path: DraftPath, num_accepted: Int64[Tensor, " m"]) -> Float64[Tensor, "m V"]:
        """The distribution of the token after the accepted ones, not normalised."""
        p, q = path.rows_after(num_accepted)
        scaled = p
        if self.prefix_weights is not None:
            scaled = self.prefix_weights(path).gather(1, num_accepted[:, None]) * p
        left = self.residual(scaled, q)
        bonus = (num_accepted == path.counts)[:, None]
        return torch.where(bonus | ~(left.sum(dim=1, keepdim=True) > 0), p, left)


class ReferenceVerifier:
    """A verifier made of a rule's formulas: batched PyTorch in float64. Other verifiers of the rule are held to it.

    Waits for the device once, to check its arguments.
    """

    def __init__(self, rule: Rule):
        self.rule, self.lossless = rule, rule.lossless

    def verify(self, draft: Draft, target: LogitRows, streams: Streams) -> Verification:
        arguments.check(draft, target, streams)
        path = DraftPathBatch(draft, target)
        u = streams.uniform(Stream.ACCEPT)[:, : draft.max_draft_tokens]
        num_accepted = self.rule.num_accepted(self.rule.limits(path), u)
        weights = self.rule.weights_after(path, num_accepted)
        return batched.assemble(draft, num_accepted, inverse_cdf(weights, streams.uniform(Stream.EMIT)[:, 0]))


def rule_of(verifier: Verifier) -> Rule:
    """The rule that a verifier follows; see :func:`get_rule`.

    Raises:
        ArgumentError: the verifier names no rule.
        ConfigError: no rule has its name, which is a misspelling of a registered one.
    """
    rule = getattr(verifier, "rule", None)
    if rule is None:
        name = config_name("verifier", verifier)
        raise ArgumentError(f'verifier={name}: it has no attribute rule. Write rule = "token" into the class.')
    if isinstance(rule, RuleInfo):
        return get_rule(rule)
    name = str(rule)
    if name not in RULES and name.isalpha() and (near := nearest(name.lower(), tuple(RULES), _MISSPELLED)):
        remedy = f"Did you mean {near}? Else give it another name; known by name are {', '.join(RULES)}."
        raise ConfigError("verifier.rule", name, "no rule has this name", remedy)
    return get_rule(name)


def rule_name(verifier: object) -> str:
    """The name of a verifier's rule; "-" if the object has none."""
    rule = getattr(verifier, "rule", "-")
    return rule.name if isinstance(rule, RuleInfo) else str(rule)


def get_rule(rule: RuleInfo | str) -> Rule:
    """The rule of a name or of a RuleInfo, with its formulas; a Rule as it is.

    A name that is not registered gives a rule without formulas. This is the rule of a verifier with randomness of its
    own, such as another project's.

    Raises:
        ConfigError: another rule is registered by this name, so that their results could not be told apart.
    """
    if isinstance(rule, str):
        return _with_formulas(RULES[rule]) if rule in RULES else Rule(name=rule, title=f"{rule} rule")
    registered = RULES.get(rule.name, rule)
    if registered.recorded:
        registered = rule  # a run's folder has the name alone
    if rule is not registered and rule is not _with_formulas(registered):
        raise ConfigError("verifier.rule", rule.name, "another rule has this name", "Give your rule a name of its own.")
    return _with_formulas(rule)


def rules_with_formulas() -> dict[str, Rule]:
    """The registered rules whose formulas are known, by name."""
    return {name: _with_formulas(info) for name, info in RULES.items() if info.has_law}


def of_this_tree(rule: Rule) -> bool:
    """Whether a rule is one of this tree, whose law the tests prove. The law of a rule registered elsewhere is not."""
    info = RULES.get(rule.name)
    if info is None or isinstance(info, Rule) or not info.of_this_tree:
        return False
    return _with_formulas(info) is rule


def _with_formulas(info: RuleInfo) -> Rule:
    return info if isinstance(info, Rule) else _imported(info)


@functools.cache  # one Rule of each RuleInfo, since rules are compared by identity
def _imported(info: RuleInfo) -> Rule:
    return importlib.import_module(info.formulas).RULE if info.formulas else Rule.of(info)
