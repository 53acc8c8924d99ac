"""Calls of ``verify`` drawn at random from the published input distribution D, and what a rule does with each.

``distribution``: the tables of D. ``calls``: one call, drawn from them. ``expected``: the tokens that a rule emits for
it. ``law``: whether a rule's formulas give the target's distribution there.
"""

from specbench.exactness.inputs.calls import Call, Takes, draw_call
from specbench.exactness.inputs.distribution import CHOICES, STRATA, Choice, Stratum, published

__all__ = ["CHOICES", "STRATA", "Call", "Choice", "Stratum", "Takes", "draw_call", "published"]
