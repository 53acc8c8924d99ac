"""Launches of the verification kernel with values that it does not check: python -m tests.helpers.bad_launches OUT.

A launch that never ends or reads foreign memory takes its process along, so this is a process of its own, and each case
has a time limit. Every tensor lies inside a larger one, whose surroundings would show in the tokens if they were read,
and are compared afterwards. OUT gets a line of JSON for each case that ended: its name, and what was wrong.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from specbench.core import arguments
from specbench.core.rng import Streams
from specbench.core.types import PADDING, Draft, LogitRows, Verification
from specbench.kernels import launch
from specbench.kernels.layout import Scratch
from specbench.rules.rule import get_rule
from tests.helpers.kernel_cases import DEVICE, GREEDY, Case, assert_agrees, step
from tests.interpreted import interpreter

LIMIT = 60 if launch.INTERPRETED else 300  # seconds a case, compilation included
MARGIN = 40  # elements or rows around each tensor: more than a wild count leads a request's lanes astray
ABSURD = 2**40 + 12345
COUNTERS = ("scored", "emitted", "outcome")  # 0 between launches
Step = tuple[Draft, LogitRows, Streams]


@dataclass(frozen=True)
class Launch:
    """A valid case and what is done to its device data; max_draft_tokens is the longest draft plus ``case.slack``."""

    case: Case
    token_ids: dict[int, int] | None = None
    counts: list[int] | None = None
    seeds: list[int] | None = None
    positions: list[int] | None = None
    bad_request: int | None = None  # whose first row is all NaN
    known: bool = False  # the target's normalisers are given
    wraps: bool = False  # p is next to 1 at the ids' lowest 32 bits, which are a token's
    colder: float | None = None  # the temperature of all rows, one that no rule has an answer to

    def arguments(self) -> Step:
        """The step with bad values. Drafted tokens are likely ones, so that most of what is sound is accepted."""
        draft, target, streams = step(self.case, 3, closeness=0.1)

        def changed(tensor: torch.Tensor, values: list[int] | None) -> torch.Tensor:
            return tensor if values is None else torch.tensor(values, device=DEVICE)

        for row, token in (self.token_ids or {}).items():
            draft.token_ids[row] = token
            if self.wraps:
                target.logits[row + draft.request_of_row[row], token % 2**32] = 30.0
        if self.bad_request is not None:
            target.logits[draft.first_row[self.bad_request] + self.bad_request] = torch.nan
        normalizer = target.normalizer if self.known else target.log_normalizer
        temperature = target.temperature if self.colder is None else torch.full_like(target.temperature, self.colder)
        return (
            Draft(draft.token_ids, draft.rows, changed(draft.num_draft_tokens, self.counts), draft.max_draft_tokens),
            LogitRows(target.logits, temperature, target.cutoff, normalizer),
            Streams(changed(streams.seeds, self.seeds), changed(streams.positions, self.positions), streams.width),
        )


V = 7
RAGGED = Case([2, 3, 0, 2], V, "seven tokens, where four requests could draft twelve")
EVEN = Case([2, 2, 2], V, "as many tokens as there can be")
WIDE = Case([1, 2, 1], 2100, "two chunks a row, which are counted")
ONE_HOT = Case([2, 3, 0, 2], V, "a residual of p alone where an id is no token's", one_hot=True)
NEXT = Case([1, 1, 0, 1], V, "what comes after: each request that may have left a counter behind")
OUTSIDE = {0: V, 3: -1, 6: V + 1}  # first, second and last of their requests
FAR = {1: 2**31 - 1, 2: -(2**31) - 1, 5: 2**63 - 1, 6: -(2**63)}
WRAPPING = {row: 2**32 + token for row, token in enumerate(range(V))}  # in 32 bits ids of the vocabulary

LAUNCHES = {
    "ids just outside": Launch(RAGGED, token_ids=OUTSIDE),
    "ids far outside, normalisers known": Launch(RAGGED, token_ids=FAR, known=True),
    "ids that wrap, one-hot": Launch(ONE_HOT, token_ids=WRAPPING, wraps=True),
    "ids just outside, a negative temperature": Launch(RAGGED, token_ids=OUTSIDE, colder=-1.0),
    "the largest int32 in a greedy row of NaN": Launch(
        Case([1, 1], V, "", [GREEDY], one_hot=True), token_ids={0: 2**31 - 1}, bad_request=0
    ),
    "a count above the bound": Launch(RAGGED, counts=[2, 9, 0, 2]),
    "counts whose sum overflows": Launch(RAGGED, counts=[2**62, 2**62, 2**62, 2**62]),
    "negative counts that add up": Launch(RAGGED, counts=[11, -3, 0, -1]),
    "the least count": Launch(RAGGED, counts=[2, -(2**63), 3, 2]),
    "counts of too many tokens": Launch(RAGGED, counts=[3, 3, 3, 3]),
    "counts of too few tokens": Launch(RAGGED, counts=[1, 0, 0, 1]),
    "counts above the bound, in chunks": Launch(WIDE, counts=[7, 2, 1]),
    "counts that nobody reads": Launch(EVEN, counts=[9, -3, 0]),
    "seeds and positions": Launch(
        RAGGED, seeds=[-1, -(2**63), -(2**32), 2**63 - 1], positions=[-1, 2**32 + 17, -(2**63), 2**63 - 1]
    ),
}


def as_read(bad: Step) -> Step:
    """The valid step that the kernel takes this one for, as the docstring of launch.verify has it.

    An id outside of the vocabulary becomes a token more, to which p gives no probability and q next to none.
    """
    draft, target, streams = bad
    n, batch, gamma = len(draft.token_ids), len(draft.num_draft_tokens), draft.max_draft_tokens
    counts, left = [], n
    for count in draft.num_draft_tokens.tolist():
        counts.append(gamma if n == batch * gamma else min(max(count, 0), gamma, left))
        left -= counts[-1]
    used = torch.arange(sum(counts), device=DEVICE)
    token_ids, vocabulary = draft.token_ids[used], target.logits.shape[1]
    inside = (token_ids >= 0) & (token_ids < vocabulary)

    def with_one_more(rows: LogitRows, logit: float) -> LogitRows:
        logits = torch.nn.functional.pad(rows.logits, (0, 1), value=logit)
        return LogitRows(logits, rows.temperature, rows.cutoff, None)

    return (
        Draft(
            torch.where(inside, token_ids, vocabulary),
            None if draft.rows is None else with_one_more(draft.rows.select(used), -40.0),
            torch.tensor(counts, device=DEVICE),
            gamma,
        ),
        with_one_more(target.select(torch.arange(len(used) + batch, device=DEVICE)), -torch.inf),
        streams,
    )


class Surroundings:
    """Larger tensors around those of a launch, and whether anything was written there."""

    def __init__(self) -> None:
        self.inside: list[torch.Tensor] = []
        self._held: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def around(self, name: str, tensor: torch.Tensor, outside: float) -> torch.Tensor:
        """A copy of a one-dimensional tensor with MARGIN elements of ``outside`` before and behind it."""
        wide = torch.full((len(tensor) + 2 * MARGIN,), outside, dtype=tensor.dtype, device=tensor.device)
        return self._hold(name, wide, wide[MARGIN : MARGIN + len(tensor)], tensor)

    def around_rows(self, name: str, logits: torch.Tensor, beside: float) -> torch.Tensor:
        """A copy of logits among rows of NaN, each row between columns of ``beside``."""
        n, vocabulary = logits.shape
        wide = torch.full((n + 2 * MARGIN, vocabulary + 2 * MARGIN), torch.nan, dtype=logits.dtype, device=DEVICE)
        wide[MARGIN : MARGIN + n] = beside
        return self._hold(name, wide, wide[MARGIN : MARGIN + n, MARGIN : MARGIN + vocabulary], logits)

    def _hold(self, name: str, wide: torch.Tensor, inside: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        self._held.append((name, inside, wide.clone()))
        self.inside.append(inside.copy_(tensor))
        return inside

    def assert_untouched(self) -> None:
        for name, inside, before in self._held:
            now = torch.empty_like(before).set_(inside.untyped_storage(), 0, before.shape, before.stride())
            before.as_strided(inside.shape, inside.stride(), inside.storage_offset()).copy_(inside)
            assert torch.equal(now.nan_to_num(7.0), before.nan_to_num(7.0)), f"something was written around {name}"


class Guarded(launch.Workspace):
    """Scratch memory with surroundings, poisoned inside but for the counters."""

    def scratch(self, *args: object) -> Scratch:
        held = self._scratch
        scratch = super().scratch(*args)
        if scratch is not held:
            self.surroundings, parts = Surroundings(), {}
            for name, tensor in scratch._asdict().items():
                poison = torch.nan if tensor.is_floating_point() else ABSURD % 2**31
                parts[name] = self.surroundings.around(name, tensor.fill_(0 if name in COUNTERS else poison), poison)
            self._scratch = Scratch(**parts)
        return self._scratch

    def assert_counters_are_0(self) -> None:
        for name in COUNTERS:
            assert not getattr(self._scratch, name).any(), f"{name} is left at {getattr(self._scratch, name).tolist()}"


def embedded(bad: Step, surroundings: Surroundings) -> Step:
    """The step among what would be accepted (beside the drafted tokens' rows) or yields no token (elsewhere)."""
    draft, target, streams = bad

    def rows(name: str, given: LogitRows, beside: float) -> LogitRows:
        normalizer = given.log_normalizer
        return LogitRows(
            surroundings.around_rows(f"{name}.logits", given.logits, beside),
            surroundings.around(f"{name}.temperature", given.temperature, torch.nan),
            surroundings.around(f"{name}.cutoff", given.cutoff, torch.inf),
            None if normalizer is None else surroundings.around(f"{name}.log_normalizer", normalizer, torch.nan),
        )

    return (
        Draft(
            surroundings.around("token_ids", draft.token_ids, ABSURD),
            None if draft.rows is None else rows("draft", draft.rows, -50.0),
            surroundings.around("num_draft_tokens", draft.num_draft_tokens, 3),
            draft.max_draft_tokens,
        ),
        rows("target", target, 50.0),
        Streams(
            surroundings.around("seeds", streams.seeds, ABSURD),
            surroundings.around("positions", streams.positions, ABSURD),
            streams.width,
        ),
    )


def launched(given: Step, block: bool, workspace: Guarded) -> Verification:
    """What the kernel makes of a step, if it kept to the memory that it was given."""
    surroundings = Surroundings()
    batch, width = len(given[0].num_draft_tokens), given[0].max_draft_tokens + 1
    out = Verification(
        surroundings.around("token_ids", torch.full((batch * width,), ABSURD, device=DEVICE), ABSURD).view(batch, -1),
        surroundings.around("num_accepted", torch.full((batch,), ABSURD, device=DEVICE), ABSURD),
    )
    run = launch.run

    def watched(*args: Any, **options: Any) -> None:
        inside = surroundings.inside + workspace.surroundings.inside
        with interpreter.only_within(inside) if launch.INTERPRETED else contextlib.nullcontext():
            run(*args, **options)

    with mock.patch.object(launch, "run", watched):
        launch.verify(*embedded(given, surroundings), block=block, workspace=workspace, out=out)
    surroundings.assert_untouched()
    workspace.surroundings.assert_untouched()
    workspace.assert_counters_are_0()
    return out


def run_one(bad: Launch, block: bool) -> None:
    """Launches the bad step and then a valid one with the same workspace, and compares both with the rule's twin."""
    rule, workspace, given = "block" if block else "token", Guarded(), bad.arguments()
    got = launched(given, block, workspace)
    assert ((got.token_ids >= PADDING) & (got.token_ids < given[1].logits.shape[1])).all(), "an id of no token"
    if bad.colder is None:
        with mock.patch.object(arguments, "check"):  # seeds and positions stay as they are
            expected = get_rule(rule).reference.verify(*as_read(given))
        if bad.bad_request is not None:  # the twin's argmax of NaN is no token either
            expected.token_ids[bad.bad_request], expected.num_accepted[bad.bad_request] = PADDING, 0
        assert got.num_accepted.tolist() == expected.num_accepted.tolist(), "num_accepted"
        assert got.token_ids.tolist() == expected.token_ids.tolist(), "token_ids"
    following = step(NEXT, 1)
    assert_agrees(rule, following, launched(following, block, workspace))


def names() -> list[str]:
    return [f"{name}, {rule} rule" for name in LAUNCHES for rule in ("token", "block")]


def _main(out: Path) -> None:
    if launch.INTERPRETED:
        interpreter.replace_once_a_launch()
    launch.TARGET_PROGRAMS, launch.SCORE_CHUNK, launch.EMIT_CHUNK = 10_000, 1, 1
    with out.open("w") as lines:
        for name in names():
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            case, rule = name.rsplit(", ", 1)
            problem = ""
            try:
                run_one(LAUNCHES[case], rule == "block rule")
            except Exception:
                problem = traceback.format_exc()
            print(json.dumps({"name": name, "problem": problem}), file=lines, flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
