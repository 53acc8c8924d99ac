"""Calls of ``verify`` drawn at random from the published input distribution D, and what a rule does with each.

``distribution``: the tables of D. ``draw``: one ``call``, drawn from them, which knows the tokens that a rule emits for
it. ``law``: whether a rule's formulas give the target's distribution there.
"""

from specbench.exactness.inputs.call import Call, Takes, fresh_seed
from specbench.exactness.inputs.distribution import CHOICES, STRATA, Choice, Stratum, published
from specbench.exactness.inputs.draw import draw_call

__all__ = ["CHOICES", "STRATA", "Call", "Choice", "Stratum", "Takes", "draw_call", "fresh_seed", "published"]
