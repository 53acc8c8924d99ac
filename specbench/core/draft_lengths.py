"""When a draft ends before gamma tokens: policies that look at the draft alone, the same in decoding and in replay.

    fixed          never
    probability    behind a drafted token whose probability under the draft is below the threshold, as transformers'
                   assistant_confidence_threshold does; the token itself is verified like any other
    entropy        before a token whose draft distribution has an entropy (nats) above the threshold

Verification stays lossless. Call the tokens drafted so far, x_1..x_i, a node. Whether token i + 1 is drafted depends on
the node and on q alone: the length is a stopping time of the draft. So at a node that goes on, x_(i+1) is a draw from
all of q, as it is without a policy, and a node that does not go on is a last one, behind which the bonus token comes
from p. The token rule looks at one node at a time. The block rule (Sun et al., arXiv 2403.10444) is proved from the
last nodes backwards: a node of weight pi is kept with probability pi, since its children keep sum min(q, pi p) in all,
and its own test adds what is missing. Neither asks that the last nodes be equally deep.

To drop the unsure token in place of verifying it would be biased. Which tokens are left then depends on their values:
they come from q without its unlikely tokens, and are verified as if they came from q.
tests/drafters/test_draft_lengths.py adds up both over all drafts: this way the distance to the target is 0, that way it
is not.
"""

from dataclasses import dataclass
from typing import Any

from specbench.core.checks import check_number
from specbench.core.errors import ConfigError

KINDS = ("fixed", "probability", "entropy")


@dataclass(frozen=True)
class LengthPolicy:
    """A policy. Both methods take arrays or tensors, and answer for each element.

    Attributes:
        kind: one of KINDS.
        threshold: None for a fixed length.
    """

    kind: str
    threshold: float | None

    def enters(self, entropy: Any) -> Any:
        """Whether a token is drafted from a distribution of this entropy (nats), under the policy ``entropy``.

        True for NaN, so that checks of the drafted tokens report it.
        """
        return ~(entropy > self.threshold)

    def goes_on(self, probability: Any) -> Any:
        """Whether another token may follow one of this probability, under the policy ``probability``."""
        return probability >= self.threshold


FIXED = LengthPolicy("fixed", None)


def policy_of(policy: object, threshold: object) -> LengthPolicy:
    """The policy that a drafter's settings ask for.

    Raises:
        ConfigError: a policy that there is not, or a threshold that it does not take.
    """
    if policy not in KINDS:
        raise ConfigError("drafter.policy", policy, "not known", f"Use {', '.join(KINDS)}.")
    if policy == "fixed":
        if threshold is not None:
            remedy = "Add drafter.policy=probability or entropy, or leave it out."
            raise ConfigError("drafter.threshold", threshold, "drafter.policy=fixed takes none", remedy)
        return FIXED
    intervals = {
        "probability": ("[0, 1]", "Use a probability from 0 to 1, such as 0.4."),
        "entropy": ("[0, inf)", "Use nats from 0, such as 1.5."),
    }
    problem = f"not a threshold of drafter.policy={policy}"
    number = check_number("drafter.threshold", threshold, *intervals[str(policy)], problem)
    return LengthPolicy(str(policy), float(number))
