"""How far can code be from the target? What was located of it, plus what may hide between the probes.

Code is a black box, and a strip of its uniforms can hide between any two probes, so that probing proves no equality.
But it bounds: let a model say what the code emits for each request (the boxes of enumeration/boxes.py, or the rule that
the code names). The total variation of a step from the target's is at most that of the model, which is known exactly,
plus the probability that the code does something else (the coupling inequality); and n requests on which it did what
the model says leave at most ln(1/alpha)/n for that, at confidence 1 - alpha.

What the code does otherwise is followed up: its strips are located, the model takes them in, and the count of requests
begins anew. Where that fails (it looks at its seed, its batch or a clock) they stay in the bound, and are bet on: do
the tokens that it emits in the others' place balance out?
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from specbench.core.types import PADDING
from specbench.exactness.enumeration.boxes import Model
from specbench.exactness.enumeration.injection import Example, Point, inject
from specbench.exactness.enumeration.laws import rule_error
from specbench.exactness.enumeration.locate import locate, relocate
from specbench.exactness.enumeration.proof import proved
from specbench.exactness.fixtures import Fixture
from specbench.exactness.reference import held_against
from specbench.exactness.results import ACCEPTANCE, COUNTED, FORM, JOINT, LOCATED, PAIRED, RULE, Bound, Row
from specbench.exactness.statistics.bets import DifferenceBets
from specbench.exactness.statistics.calls import MODELS, CallCounts
from specbench.exactness.statistics.power import share_at_most
from specbench.exactness.statistics.tally import Tally
from specbench.exactness.steps import Steps, table_rows
from specbench.exactness.streams import uniforms
from specbench.rules.agreement import TOLERANCE
from specbench.rules.rule import rule_of
from specbench.rules.verifier import Verifier

_BET_ON = 2048  # differing requests of a batch to bet on, about; chosen before it is known which differ
_KEPT = 400  # points at which the code did something else, kept for a follow-up
_EXACT = 1e-12  # total variation that float64 makes of a lossless rule's formulas


class Probe:
    """What is known of a verifier on one fixture.

    Args:
        effort: how thoroughly to look for its thresholds, as in locate(); 0 if it does not draw from the streams that
            it is handed, or is too slow.
        deadline: of ``time.perf_counter``, after which no search begins.

    Attributes:
        late: whether the deadline came before all thresholds were looked for.
        method: LOCATED (against boxes of its own), RULE (against the rule that it names), COUNTED (against nothing:
            there is neither, and what is known is what counts of its tokens say).
        draws, surprises: requests since the model was made, and those on which the code did something else.
        explained: surprises that were followed up and are in the model.
        rounding, structural: surprises that rounding explains, of those held against the rule; and surprises whose
            tokens are not those of the rule that it names, beyond rounding, if the rule has formulas.
        impure: surprises that do not come out so if the same uniforms are given again.
        calls: of the verifier since the model was made, and the number of models there have been.
    """

    def __init__(self, verifier: Verifier, fixture: Fixture, effort: float, deadline: float = math.inf):
        self.verifier, self.fixture, self.late = verifier, fixture, False
        self.classes = fixture.classes()
        self.models: list[Model] = []  # of each class
        self.rule = rule_of(verifier)
        self.tally = Tally(fixture, self.rule)
        self.held = held_against(verifier)
        self.method = COUNTED if self.held is None else RULE
        if effort and fixture.enumerable:
            self._locate(effort, deadline)
        self.draws = self.surprises = self.explained = self.rounding = self.structural = self.impure = 0
        self.calls = CallCounts()
        self.fuzzy = self.method != LOCATED  # whether surprises are not followed up
        self.example: Example | None = None
        self.rule_error = rule_error(self.rule, fixture) if self.rule.has_law and fixture.enumerable else None
        self._proved: bool | None = None
        self._pending: dict[int, list[Float64[Tensor, "s n width"]]] = {}
        self._rate = 0.0
        self._bets = DifferenceBets(fixture.p.numel(), 1.0, fixture.p.device)

    def _locate(self, effort: float, deadline: float) -> None:
        for own in self.classes:
            self.late = time.perf_counter() > deadline
            model = None if self.late else locate(self.verifier, own, effort)
            if model is None:
                self.models = []
                return
            self.models.append(model)
        self.method = LOCATED

    @property
    def located(self) -> float | None:
        """Total variation of the model: the largest over draft lengths and sampling parameters; 0 of a lossless rule.

        None if it is not known: there is no model, or a rule that is not lossless and cannot be enumerated.
        """
        if self.method == LOCATED:
            return max(model.tv for model in self.models)
        keeps_promise = self.rule.lossless and (self.rule_error or 0.0) < _EXACT  # as far as it was enumerated
        return (0.0 if keeps_promise else self.rule_error) if self.method == RULE else None

    @property
    def proved(self) -> bool:
        """Whether the code was run over whole boxes, gave in each what the model says, and in each request too."""
        if self.surprises:
            return False
        if self._proved is None:
            self._proved = self.method == LOCATED and all(proved(self.verifier, model) for model in self.models)
        return self._proved

    def hidden(self, alpha: float) -> float | None:
        """Upper bound on the probability that the code does something else, with false alarm alpha at any model.

        A model's share of alpha is half of that of the one before it.
        """
        if self.method == COUNTED:
            return None
        return share_at_most(self.surprises, self.draws, alpha * 0.5**self.calls.phase) if self.draws else 1.0

    def least(self, alpha: float) -> float:
        """Lower bound on the bias, with false alarm alpha at any model: what was located less what may hide."""
        return max(0.0, (self.located or 0.0) - (self.hidden(alpha) or 0.0))

    @property
    def paired_p_value(self) -> float | None:
        """Of the bets on the requests that differ; None if none did, or what was foreseen is not the target's."""
        return self._bets.p_value if self._bets.draws else None

    def rows(self) -> list[Row]:
        """The tests of the steps so far; none without a step."""
        name, tally, rows = self.fixture.name, self.tally, []
        if tally.draws == 0:
            return rows
        joint, acceptance = tally.joint(), tally.acceptance()
        rows.append(Row.of_failures(name, FORM, tally.draws, int(tally.malformed) + joint.forbidden))
        if joint.dof:
            counts = (tally.draws, joint.statistic, joint.dof, joint.p_value)
            rows.append(Row(name, JOINT, *counts, untested=joint.untested))
        if acceptance is not None and acceptance.dof:
            statistic, p = acceptance.statistic, acceptance.p_value
            rows.append(Row(name, ACCEPTANCE, tally.draws, statistic, acceptance.dof, p, gates=False))
        if self.paired_p_value is not None:
            rows.append(Row(name, PAIRED, tally.draws, 0.0, 0, self.paired_p_value))
        return rows

    def check(self, steps: Steps, sizes: Sequence[int]) -> None:
        """Takes verified steps of requests with streams of their own.

        Args:
            sizes: requests of each call that verified them.
        """
        self.tally.add(steps)
        if self.method == COUNTED:
            return
        wanted = self._wanted(steps)
        differ = (steps.visible != wanted).any(dim=1)
        rows = differ.nonzero()[:, 0]
        self.draws += len(differ)
        self.calls.add(differ, sizes)
        self.surprises += len(rows)
        if len(rows):
            if self.located is not None and self.located <= TOLERANCE:  # else what was foreseen is not the target's
                self._bet(steps, wanted, differ)
            self._keep(steps, wanted, rows)
        self._rate = max(len(rows) / len(differ), 0.5 * self._rate)

    def _wanted(self, steps: Steps) -> Int64[Tensor, "B width"]:
        if self.method == RULE:
            return steps.drawn.expected(self.rule).token_ids
        given = uniforms(steps.drawn.streams)
        if len(self.models) == 1:
            return self.models[0].predict(given)
        wanted = torch.empty_like(steps.tokens)
        classes = steps.drawn.classes
        for number, model in enumerate(self.models):
            own = (classes == number).nonzero()[:, 0]
            wanted[own] = model.predict(given[:, own])
        return wanted

    def _bet(self, steps: Steps, wanted: Int64[Tensor, "B width"], differ: Tensor) -> None:
        """Bets on the first requests of the batch, of which about _BET_ON should differ."""
        most = len(differ) if self._rate * len(differ) <= _BET_ON else int(_BET_ON / self._rate)
        for part in differ[:most].nonzero()[:, 0].split(_BET_ON):
            got, other = steps.visible[part], wanted[part]
            base = steps.drawn.base[part]
            self._bets.add(self._excess(base, got) - self._excess(base, other))

    def _excess(self, base: Int64[Tensor, " m"], tokens: Int64[Tensor, "m width"]) -> Float64[Tensor, "m cells"]:
        """Each request's tokens by table row and id, less what the target has there."""
        p, there = self.fixture.p, tokens != PADDING
        rows = table_rows(self.fixture, base, tokens)
        reached = torch.zeros((len(tokens), len(p)), dtype=torch.float64, device=p.device)
        reached.scatter_add_(1, rows, there.double())
        cells = -(reached[:, :, None] * p).flatten(1)
        return cells.scatter_add_(1, rows * p.shape[1] + tokens.clamp(min=0), there.double())

    def _keep(self, steps: Steps, wanted: Int64[Tensor, "B width"], rows: Tensor) -> None:
        drawn, streams = steps.drawn, steps.drawn.streams
        if self.held is not None:
            unlike = drawn.beyond_rounding(self.rule, steps.verification, rows)
            self.structural += len(unlike)
            if self.method == RULE:
                self.rounding += len(rows) - len(unlike)
                rows = unlike
        classes = drawn.classes
        given = uniforms(streams)[:, :, : self.fixture.gamma + 1]
        for number in classes[rows].unique().tolist():
            own = rows[classes[rows] == number][:_KEPT]
            if not self.fuzzy:
                self._pending.setdefault(number, []).append(given[:, own])
            if self.example is None:
                b = int(own[0])
                tokens = [steps.visible[b].cpu(), wanted[b].cpu()]
                point = Point(self.classes[number], given[:, b].cpu())
                self.example = Example(point, int(streams.seeds[b]), int(streams.positions[b]), *tokens)

    def follow_up(self, seed: int) -> bool:
        """Takes what the code did otherwise into the model; returns whether there is another one, with no draws yet."""
        if self.fuzzy or not self.surprises:
            return False
        anew = list(self.models)
        for number, parts in self._pending.items():
            given = torch.cat(parts, dim=1)[:, :_KEPT].cpu()
            model = self.models[number]
            again = inject(self.verifier, model.fixture, given).visible
            box, same = None, (again != model.predict(given)).any(dim=1)
            self.impure += int((~same).sum())
            if same.all():
                box = relocate(self.verifier, model, given, seed + self.calls.phase)
            if box is None or self.calls.phase == MODELS:
                self.fuzzy = True  # it is not the uniforms that made it: a seed, the company, the hour
                return False
            anew[number] = box
        self.models = anew
        self._proved = None
        self.explained += self.surprises
        self.draws = self.surprises = self.structural = 0
        self.calls = CallCounts(phase=self.calls.phase + 1)
        self._pending.clear()
        self.example = None
        return True

    def bound(self, alpha: float, least_alpha: float, counted_tv: float | None = None) -> Bound:
        """What is known of the fixture.

        Args:
            alpha, least_alpha: false alarm of the bound from above and of that from below.
            counted_tv: the bound by counts alone, which is taken if no bias of a model or rule is known.
        """
        hidden, located = self.hidden(alpha), self.located
        tv = counted_tv if hidden is None or located is None else min(1.0, located + hidden)
        return Bound(
            fixture=self.fixture.name,
            method=self.method,
            rule_error=self.rule_error,
            located=located,
            boxes=sum(len(model.tokens) for model in self.models) if self.method == LOCATED else None,
            proved=self.proved,
            draws=self.draws if hidden is not None else self.tally.draws,
            differing=self.surprises,
            rounding=self.rounding,
            structural=None if self.held is None else self.structural,
            explained=self.explained,
            impure=self.impure,
            hidden=hidden,
            tv=tv,
            least=self.least(least_alpha),
        )
