"""What is known of a rule without a tensor: what it is called, what it promises, how it fares in texts, what it reads.

**Survival.** With rho_j = p(x_j) / q(x_j) for the tokens x_1, x_2, ... that a text has from some place on, and
R_i = rho_1 ... rho_i, a block that starts there accepts at least i tokens with probability

    token    prod_(j <= i) min(1, 1 / rho_j)
    block    pi_i / R_i = min(1, min_(j <= i) 1 / R_j), where pi_i = min(1, pi_(i-1) rho_i)

A rule drafts and accepts x_1 ... x_i with probability q(x_1..i) P(tau >= i | drafted x_1..i), and the text begins so
with probability p(x_1..i); the quotient is what is given here, so it needs a lossless rule. For the block rule
P(tau >= i | drafted x_1..i) = pi_i whatever gamma is (arXiv 2403.10444), and log pi is log R reflected at 0, whence the
minimum. Both are exp(-max(0, max_(j <= i) (c_1 + ... + c_j))) for some cost c_j of each token: max(log rho_j, 0) in the
token rule, log rho_j in the block rule. ``Card.token_cost`` is that cost.

**Byte floor.** A verifier starts from logits in device memory, s bytes each, V a row. It must read, whatever its plan:

every rule
    - each drafted row of the target once (s V), since p of a drafted token needs the row's normaliser. Those behind
      the first rejection could be skipped by a verifier that waits for each decision; they are counted, because rows
      have to be read side by side to fill a device.
    - after a block that was accepted whole, the bonus row (s V): a draw from it needs no second reading.
token rule
    - after a rejection, p and q of the rejected row (2 s V): the residual max(p - q, 0) needs p's normaliser before
      its first entry can be computed, so p is read a second time. q's normaliser is known from drafting, and q is read
      here for the first time. A one-hot q is not read (s V).
block rule
    - p and q of each drafted row (2 s V), since every h_i needs the residual mass S_i, and S_i both normalisers. The
      residual that is drawn from is one of these. With a one-hot q, S_i is pi_i (1 - p(x)), and only the row that is
      drawn from is read again (s V).
greedy requests, either rule
    - each drafted row of the target once, and the bonus row where it is used: the argmax of a rejected row was found
      when the row was read. q is not needed.

Tokens, seeds, numbers a row and outputs are a few bytes a request and are not counted. If a sampler truncates, a row's
cutoff must be known before its normaliser, which takes further readings; the floor is kept as it is, so that ratios to
it can be compared between samplers. ``Card.rows_again`` counts what a rule adds to the first part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64

from specbench.core.errors import ArgumentError

Guarantee = Literal["lossless", "lossy", "flawed"]
TokenCost = Callable[[Float64[np.ndarray, " T"]], Float64[np.ndarray, " T"]]
RowsAgain = Callable[[int, int, bool], int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Card:
    """A rule's card. What is None is not known, and whoever needs it says so.

    Attributes:
        name: as verifiers name it and as it stands in the column ``rule`` of results.
        title: in words, such as "token rule".
        paper: where it is from.
        guarantee: "lossless" (what is emitted is distributed as the target's own tokens), "lossy" (it is not, by
            design), "flawed" (it was meant to be); None if nobody says.
        emits: the distribution of what it emits, in words, if it is another than the target's and is known;
            ``law.emitted`` has it in numbers, of a rule whose formulas are known.
        token_cost: survival in texts, as the cost of each token from its log(p / q); lossless rules alone.
        rows_again: byte floor: rows that are read beside each drafted row and the bonus rows, from the numbers of
            drafted tokens and of rejections in a batch, and whether drafts are deterministic (q one-hot).
        on_trees: what becomes of several candidates for one position, and where that is from; empty for a rule of
            chains alone. All else here is of chains.
    """

    name: str
    title: str
    paper: str = ""
    guarantee: Guarantee | None = None
    emits: str = ""
    token_cost: TokenCost | None = None
    rows_again: RowsAgain | None = None
    on_trees: str = ""


TOKEN = Card(
    name="token",
    title="token rule",
    paper="Leviathan et al., arXiv 2211.17192, algorithm 1; Chen et al., arXiv 2302.01318, algorithm 2",
    guarantee="lossless",
    token_cost=lambda log_rho: np.maximum(log_rho, 0.0),  # each token answers for itself
    rows_again=lambda drafted, rejected, one_hot: rejected if one_hot else 2 * rejected,
    on_trees="candidates are tried in the order in which they were drawn, each against what is left of p: recursive "
    "rejection sampling (Miao et al., arXiv 2305.09781; Jeon et al., arXiv 2402.14160; Chen et al., arXiv 2402.12374)",
)
BLOCK = Card(
    name="block",
    title="block rule",
    paper="Sun et al., arXiv 2403.10444",
    guarantee="lossless",
    token_cost=lambda log_rho: log_rho,
    rows_again=lambda drafted, rejected, one_hot: rejected if one_hot else 2 * drafted,
)
CARDS = {card.name: card for card in (TOKEN, BLOCK)}


def card_of(rule: Card | str) -> Card:
    """The card of a rule by its name; a card, or a Rule, is its own.

    Raises:
        ArgumentError: the name of no rule in this tree.
    """
    if isinstance(rule, Card):
        return rule
    if rule not in CARDS:
        raise ArgumentError(f"rule={rule}: not one of {', '.join(CARDS)}. Give a rule of your own as a Rule.")
    return CARDS[rule]


def floor_card(rule: Card | str) -> Card:
    """The card whose byte floor stands beside a rule's times: the token rule's, for a rule that has none."""
    card = CARDS.get(rule, TOKEN) if isinstance(rule, str) else rule
    return TOKEN if card.rows_again is None else card
