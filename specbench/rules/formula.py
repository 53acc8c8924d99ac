"""The formulas of a rule are functions of a user's module: what one does wrong is named by rule and formula."""

import numbers
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from specbench.core.errors import ArgumentError, ConfigError, SpecbenchError

# From a formula's result and its arguments: what is wrong with the result, "" if nothing is.
Problem = Callable[..., str]


class UnknownRowsError(Exception):
    """A DraftPath lacks the rows that a formula asks for, which is no fault of the formula."""


@dataclass(frozen=True)
class Form:
    """What a formula returns.

    Attributes:
        words: its result, for messages.
        problem: finds what is wrong with a result.
    """

    words: str
    problem: Problem


@dataclass(frozen=True)
class Formula:
    """A function that checks what another one returns.

    Attributes:
        rule, name: of the rule, and of its field that holds the formula.
        form: what it has to return.
    """

    rule: str
    name: str
    function: Callable[..., Any]
    form: Form

    def __call__(self, *arguments: Any) -> Any:
        """Returns the result of the formula. Raises ConfigError if it raised, or returned something else."""
        try:
            result = self.function(*arguments)
        except (SpecbenchError, UnknownRowsError):
            raise
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            problem = f"raised {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
            raise self._fault(problem) from error
        if problem := self.form.problem(result, *arguments):
            raise self._fault(f"returned {problem}")
        return result

    def _fault(self, problem: str) -> ConfigError:
        remedy = f"Mend this formula of the rule: it has to return {self.form.words}."
        return ConfigError("verifier.rule", self.rule, f"{self.name} {problem}", remedy)


def check_formulas(rule: Any, forms: Mapping[str, Form]) -> None:
    """Replaces the formulas of a rule by ones that check what they return.

    Args:
        rule: a RuleInfo, which is frozen, while it is made.
        forms: of each field that may hold a formula.

    Raises:
        ArgumentError: a field holds something else.
    """
    for name, form in forms.items():
        formula = getattr(rule, name)
        if formula is None:
            continue
        if not callable(formula):
            problem = f"{name} is {formula!r}, which is no function"
            raise ArgumentError(
                f"rule={rule.name}: {problem}. Give a function that returns {form.words}, or leave it out."
            )
        function = formula.function if isinstance(formula, Formula) else formula  # of a copy of a rule
        object.__setattr__(rule, name, Formula(rule.name, name, function, form))


def _array_problem(result: Any, log_rho: np.ndarray) -> str:
    if not isinstance(result, np.ndarray) or result.dtype.kind != "f" or result.shape != log_rho.shape:
        return described(result)
    unknown = np.isnan(result) & ~np.isnan(log_rho)
    return f"NaN where log(p / q) is {log_rho[unknown][0]:.3g}" if unknown.any() else ""


def _count_problem(result: Any, *_: Any) -> str:
    return "" if isinstance(result, numbers.Integral) and result >= 0 else described(result)


def described(result: Any) -> str:
    """What a formula returned, in words: of a tensor or an array its dtype and shape."""
    kind = type(result).__name__
    if not hasattr(result, "dtype"):
        return f"{result!r}, a {kind}"[:200]
    return f"a {kind} of {result.dtype} {list(result.shape)}"


FORMS = {
    "token_cost": Form("an array of floats with a number for each of log_rho, none of them NaN", _array_problem),
    "rows_again": Form("the number of rows, an integer of 0 or more", _count_problem),
}
