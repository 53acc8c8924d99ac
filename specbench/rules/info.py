"""What is known of a rule without PyTorch: names, papers, guarantee, survival in texts, byte floor, looks in figures.

**Survival.** Let x_1, x_2, ... be the tokens of a text from some position on, rho_j = p(x_j) / q(x_j), and
R_i = rho_1 ... rho_i. A lossless rule drafts and accepts x_1 ... x_i with probability q(x_1..i) P(tau >= i | drafted
x_1..i), and the text has these tokens with probability p(x_1..i). Given the text, a block that starts there therefore
accepts at least i tokens with probability P(tau >= i | drafted x_1..i) / R_i. For the rules of this tree that is

    exp(-max(0, max_(j <= i) (c_1 + ... + c_j)))

with a cost c_j of each token, ``RuleInfo.token_cost``.

**Byte floor.** A verifier starts from logits in device memory: s bytes each, V in a row. Every rule must read

- each drafted row of the target once (s V), because p of a drafted token needs the row's normaliser. A verifier that
  waits for each decision could skip the rows after the first rejection. They are counted, because a device is busy only
  if rows are read in parallel;
- the bonus row after a block that was accepted whole (s V). A draw from it needs no second reading.

``RuleInfo.rows_again`` counts the rows that the rule reads beyond these. A greedy request reads no other row, because
the argmax of a rejected row is found in the first reading and q is not needed. Tokens, seeds, numbers per row and
outputs are not counted: they are a few bytes per request. A sampler that truncates needs a row's cutoff before its
normaliser, which takes further readings. They are not counted either, so that ratios to the floor can be compared
between samplers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
from jaxtyping import Float64

from specbench.core.errors import ArgumentError
from specbench.rules.formula import FORMS, check_formulas

Guarantee = Literal["lossless", "lossy", "flawed"]
TokenCost = Callable[[Float64[np.ndarray, " T"]], Float64[np.ndarray, " T"]]
RowsAgain = Callable[[int, int, bool], int]


class SeriesLook(NamedTuple):
    """The look of a verifier's series, the same in every figure.

    Attributes:
        colour: a name of ``plots.looks.NAMED_COLOURS``, such as "blue", or a colour of matplotlib, such as "#0072B2".
        marker: one of ``plots.looks.MARKERS``.
    """

    colour: str
    marker: str


@dataclass(frozen=True, kw_only=True, eq=False)
class RuleInfo:
    """What is known of a rule without PyTorch. A field that is None or empty is not known.

    Attributes:
        name: the name by which verifiers refer to the rule, and its value in certificates and tables that have a column
            ``rule``.
        title: the name in words, such as "token rule".
        papers: BibTeX keys of the papers that define it: entries of reports/latex/references.bib, or of ``bibtex``.
        tree_papers: BibTeX keys of the papers that define it for trees.
        bibtex: BibTeX entries that references.bib does not have.
        guarantee: "lossless" (emitted tokens are distributed as the target's own), "lossy" (they are not, by design),
            "flawed" (they are not, by mistake); None if nothing is declared.
        emits: the distribution of the emitted tokens, in words, if it is known and not the target's.
            ``law.emitted`` computes it from formulas.
        token_cost: the cost of each token of a text, from its log(p / q); see the module. Lossless rules alone.
        rows_again: the rows that are read beyond the drafted rows and the bonus rows, from the numbers of drafted
            tokens and of rejections in a batch, and whether q is one-hot; see the module.
        formulas: the module whose ``RULE`` is this rule with its formulas, such as "specbench.rules.token.formulas".
        verifiers: the looks of the verifiers that follow the rule on chains, by the names that results give them.
            They emit the same tokens from the same streams. The rule's own series look like the first verifier's.
        tree_verifiers: the looks of the verifiers that follow it on trees.
        timing_baseline: the verifier that the others are compared with in speed, if it was timed.
        recorded: whether it was read back from a run's folder, without its functions (rules/recorded.py).

    Raises:
        ArgumentError: a name, a guarantee or a function that is none. A function that fails, or returns something
            else, raises a ConfigError when it is called (rules/formula.py).
    """

    name: str
    title: str
    papers: tuple[str, ...] = ()
    tree_papers: tuple[str, ...] = ()
    bibtex: str = ""
    guarantee: Guarantee | None = None
    emits: str = ""
    token_cost: TokenCost | None = None
    rows_again: RowsAgain | None = None
    formulas: str = ""
    verifiers: Mapping[str, SeriesLook] = field(default_factory=dict)
    tree_verifiers: Mapping[str, SeriesLook] = field(default_factory=dict)
    timing_baseline: str = ""
    recorded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError(f"rule={self.name!r}: no name. Give a text, by which results refer to the rule.")
        if self.guarantee not in (None, *get_args(Guarantee)):
            known = ", ".join(get_args(Guarantee))
            raise ArgumentError(f"rule={self.name}: guarantee is {self.guarantee!r}. Give {known}, or leave it out.")
        check_formulas(self, FORMS)

    @property
    def of_this_tree(self) -> bool:
        """Whether it is a rule of specbench itself, and not of a user's module."""
        return self.formulas.startswith(f"{__package__}.")

    @property
    def has_law(self) -> bool:
        """Whether its formulas are known."""
        return bool(self.formulas)

    @property
    def lossless(self) -> bool:
        """Whether it is declared lossless."""
        return self.guarantee == "lossless"


RULES: dict[str, RuleInfo] = {}  # the registered rules by name, in the order of tables and figures
Info = TypeVar("Info", bound=RuleInfo)


def register(rule: Info) -> Info:
    """Makes a rule known to reports, figures, replay and certificates by its name, and returns it.

    A rule of this tree is registered in the ``__init__`` of its folder; a Rule of your own, in your module.

    A rule that was only read back from a run's folder (rules/recorded.py) gives way.

    Raises:
        ArgumentError: the name of the rule, or of one of its verifiers, belongs to another registered rule.
    """
    for other in list(RULES.values()):
        if other.recorded and _share_names(rule, other):
            del RULES[other.name]
    if RULES.get(rule.name, rule) is not rule:
        raise ArgumentError(f"rule={rule.name}: this name is registered for another rule. Give your rule another name.")
    for other in RULES.values():
        taken = {*other.verifiers, *other.tree_verifiers}
        if other is not rule and (shared := {*rule.verifiers, *rule.tree_verifiers} & taken):
            raise ArgumentError(
                f"rule={rule.name}: verifiers has {min(shared)!r}, which follows the {other.title}. "
                "Give each verifier to one rule."
            )
    RULES[rule.name] = rule
    return rule


def _share_names(rule: RuleInfo, other: RuleInfo) -> bool:
    verifiers = {*rule.verifiers, *rule.tree_verifiers}
    return rule.name == other.name or not verifiers.isdisjoint({*other.verifiers, *other.tree_verifiers})


def info_of(rule: RuleInfo | str) -> RuleInfo:
    """The registered rule of a name; a RuleInfo as it is.

    Raises:
        ArgumentError: no rule of this name is registered.
    """
    if isinstance(rule, RuleInfo):
        return rule
    if rule not in RULES:
        raise ArgumentError(f"rule={rule}: not one of {', '.join(RULES)}. Give a rule of your own as a Rule.")
    return RULES[rule]


def floor_info(rule: RuleInfo | str) -> RuleInfo:
    """The rule whose byte floor is shown beside the times of a rule: the token rule if its own floor is not known."""
    info = RULES.get(rule) if isinstance(rule, str) else rule
    return RULES["token"] if info is None or info.rows_again is None else info


def rules_by_verifier() -> dict[str, RuleInfo]:
    """The registered rule that each verifier of chains follows, by the verifier's name."""
    return {verifier: info for info in RULES.values() for verifier in info.verifiers}


def rules_followed(verifiers: Iterable[str]) -> list[str]:
    """The names of the registered rules that verifiers follow."""
    rules = rules_by_verifier()
    return list(dict.fromkeys(rules[name].name for name in verifiers if name in rules))


def replayable() -> list[RuleInfo]:
    """The registered rules whose acceptance can be replayed from a trace in this process."""
    return [info for info in RULES.values() if info.token_cost is not None and not info.recorded]
