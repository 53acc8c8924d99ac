"""T > 0, with the engine's weights at hand: are texts distributed as the checkpoint says? It scores every token.

Where two samples must learn which tokens are likely, a checkpoint knows. The bets of exactness/texts/eprocess.py are
settled on both ways of decoding. An engine computes with roundings and quantisations of its own, so that its plain
texts may differ from the checkpoint as well: speculation is refuted only if plain texts show nothing.

A token that the checkpoint excludes is no proof against speculation, since the plain engine may emit it too, as rarely:
where a token has massive activations, 8-bit activations change logits by 9. So there is a fair bet on which way of
decoding emits the next such token: a speculative one multiplies the wealth by 1.9, and a plain one by 0.1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import stats

from specbench.core.errors import ConfigError
from specbench.decoding import logits_along, rows_along
from specbench.exactness.texts.eprocess import BETS, e_value, log_factors, log_wealth, rejected_at
from specbench.exactness.two_sample.bets import CLASSES, LIKELIEST, RARER, TENTH
from specbench.metrics.findings import DIFFERENCE, SHARES
from specbench.metrics.findings import OF_CHECKPOINT as QUESTION
from specbench.models import CachedModel
from specbench.models.loading import Pair, load_pair
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_ASKED, NOT_REFUTED, REFUTED, Finding
from specbench.sampling import SamplingParams
from specbench.sources import Completion, Mode

BATCH = 32  # texts of a prompt that are scored together
DOUBT = 10.0  # evidence to one against plain texts, from which on the checkpoint is not the engine's model
EXCLUDED = {"speculative": math.log(1.9), "plain": math.log(0.1)}  # log factors of a token that the checkpoint excludes
EDGES = (-3.0, -1.5, -0.7, -0.2, 0.2, 0.7, 1.5, 3.0)  # of log q - log p
DRAFTED = "those that the draft makes likelier"


@dataclass(frozen=True)
class ShareRow:
    """How often tokens of a set occur, and how often the checkpoint says that they should.

    Attributes:
        mode: of the texts; DIFFERENCE compares both ways' differences from the checkpoint.
        which: the set.
        tokens: that were scored.
        share, expected: None for the difference of both ways.
        difference: of both, or of both ways' differences.
        bound: above its absolute value, at the stated confidence for all sets of a mode together.
    """

    mode: str
    which: str
    tokens: int
    share: float | None
    expected: float | None
    difference: float
    bound: float


@dataclass(frozen=True, eq=False)
class ScoredText:
    """What a checkpoint says of a text of n tokens.

    Attributes:
        factors: float [n, bets], see eprocess.log_factors.
        classes, ratios: int [n], see TextPairs.
        members: float [n, sets], 1 where the token is in the set.
        expected: float [n, sets], the probability of the set.
        tokens: int [n].
        columns: float [n] each, those of a trace (replay/trace.py): log_p, and with a draft log_q and draft_argmax.
    """

    factors: np.ndarray
    classes: np.ndarray
    ratios: np.ndarray
    members: np.ndarray
    expected: np.ndarray
    tokens: np.ndarray = field(kw_only=True, default_factory=lambda: np.zeros(0, dtype=np.int64))
    columns: Mapping[str, np.ndarray] = field(kw_only=True, default_factory=dict)

    @property
    def excluded(self) -> int:
        """How many tokens the checkpoint excludes."""
        return int(np.isposinf(self.factors).any(axis=1).sum())


class TextScorer:
    """Scores texts with the target, and a draft if there is one, and adds up what they show.

    Args:
        target, draft: see :func:`specbench.load_pair`.
        device, dtype: of the models.
        sampling: of the texts.
        tolerance: logit units by which the engine may differ at the edge of truncated distributions; None is the
            dtype's rounding.
    """

    def __init__(
        self, target: str, draft: str | None, device: str, dtype: str, sampling: SamplingParams, tolerance: float | None
    ):
        self.name = target
        self.pair: Pair = load_pair(target, draft, device=device, dtype=dtype, chat=False)
        loaded = {"target": self.pair.target, "draft": self.pair.draft}
        self.models = [
            CachedModel(model, self.pair.vocab_size, name) for name, model in loaded.items() if model is not None
        ]
        self.sampling, self.tolerance = self.pair.resolved(sampling), tolerance
        self.texts: dict[Mode, list[ScoredText]] = {mode: [] for mode in Mode}
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], ScoredText] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        """The token ids of a prompt."""
        return tuple(self.pair.encode(text))

    def add(self, completions: Sequence[Completion], mode: Mode) -> None:
        """Scores further texts of a mode, which then count in what is said of it."""
        self.texts[mode] += self.score(completions)

    def score(self, completions: Sequence[Completion]) -> list[ScoredText]:
        """Scores texts. Equal texts are scored once.

        Raises:
            ConfigError: texts without token ids, or with ids that the checkpoint does not have.
        """
        keys = [self.located(completion) for completion in completions]
        missing: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for prompt, ids in dict.fromkeys(key for key in keys if key[1] and key not in self._known):
            missing[prompt].append(ids)
        for prompt, texts in missing.items():
            for start in range(0, len(texts), BATCH):
                part = texts[start : start + BATCH]
                for ids, scored in zip(part, self._scored(prompt, part), strict=True):
                    self._known[prompt, ids] = scored
        tokens, sets = np.zeros(0, dtype=np.int64), np.zeros((0, len(self.sets)))
        nothing = ScoredText(np.zeros((0, len(BETS))), tokens, tokens, sets, sets)
        return [self._known[key] if key[1] else nothing for key in keys]

    @property
    def sets(self) -> list[str]:
        """Names of sets of tokens whose shares are compared."""
        return [*CLASSES.values(), *([DRAFTED] if len(self.models) > 1 else [])]

    def marks(self, length: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Classes and ratios of all pairs of texts, int [R, 2, length], as TextPairs has them."""
        numbers = np.zeros((2, len(self.texts[Mode.PLAIN]), 2, length), dtype=np.int64)
        for side, mode in enumerate(Mode):
            for row, text in enumerate(self.texts[mode]):
                count = min(len(text.classes), length)
                numbers[:, row, side, :count] = text.classes[:count], text.ratios[:count]
        return numbers[0], numbers[1] if len(self.models) > 1 else None

    def evidence(self, mode: Mode) -> np.ndarray:
        """log wealth after each token of a mode, all bets with equal stakes; infinite after a plain token that the
        checkpoint excludes."""
        factors = [text.factors for text in self.texts[mode]]
        if mode is Mode.SPECULATIVE:
            owed, plain = 0.0, self.texts[Mode.PLAIN]
            for number, own in enumerate(factors):
                owed += EXCLUDED["plain"] * (plain[number].excluded if number < len(plain) else 0)
                if len(own):
                    factors[number] = np.where(np.isposinf(own), EXCLUDED["speculative"], own)
                    factors[number][0], owed = factors[number][0] + owed, 0.0
        return log_wealth(np.concatenate(factors or [np.zeros((0, len(BETS)))]))

    def excluded(self, mode: Mode) -> int:
        """How many tokens of a mode the checkpoint excludes."""
        return sum(text.excluded for text in self.texts[mode])

    def refutes(self, false_alarm: float) -> bool:
        """Whether speculative texts are refuted, and plain ones show nothing."""
        plain = e_value(self.evidence(Mode.PLAIN))
        return plain < math.log10(DOUBT) and rejected_at(self.evidence(Mode.SPECULATIVE), false_alarm) is not None

    def located(self, text: Completion) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The token ids of a text's prompt, and its own; -1 is an end that the engine leaves out.

        Raises:
            ConfigError: a text without token ids, or with ids that the checkpoint does not have.
        """
        if text.token_ids is None:
            problem = "the source returns no token ids"
            raise ConfigError("protocol.target", self.name, problem, "Leave it out: texts are then compared as words.")
        prompt, ids = text.request.token_ids or self.encode(text.request.prompt), text.token_ids
        if max(ids, default=0) >= self.pair.vocab_size:
            problem = f"it has {self.pair.vocab_size} tokens, and a text has the id {max(ids)}"
            raise ConfigError("protocol.target", self.name, problem, "Name the checkpoint of the engine's own model.")
        stops = self.sampling.ids_that_end(self.pair.stop_ids)
        ended = text.finish_reason == "stop" and len(ids) < text.request.max_new_tokens and bool(stops)
        if ended and not (ids and ids[-1] in stops):  # the engine leaves out the token that ended the text
            ids = (*ids, -1)
        return prompt, ids

    @torch.inference_mode()
    def _scored(self, prompt: tuple[int, ...], texts: Sequence[tuple[int, ...]]) -> list[ScoredText]:
        """Returns the scores of texts. An omitted end is taken for the likeliest of the ids that end a text."""
        ends = sorted(self.sampling.ids_that_end(self.pair.stop_ids))
        fed = [[max(token, 0) for token in ids] for ids in texts]
        logits = [logits_along(model, [prompt] * len(texts), fed) for model in self.models]
        for ids, known, along in zip(texts, fed, logits[0], strict=True):
            if ids and ids[-1] < 0:
                known[-1] = ends[int(along[-1, ends].argmax())]
        return [self._text(prompt, ids, *of_text) for ids, *of_text in zip(fed, *logits, strict=True)]

    def _text(
        self, prompt: tuple[int, ...], ids: list[int], target: torch.Tensor, draft: torch.Tensor | None = None
    ) -> ScoredText:
        p = rows_along(target, self.sampling, prompt, ids)
        q = None if draft is None else rows_along(draft, self.sampling, prompt, ids)
        tokens = torch.tensor(ids, device=p.logits.device)
        dense = [rows.probs() for rows in (p, q) if rows is not None]
        probs, own = dense[0], p.prob(tokens)
        classes = torch.where(p.argmax == tokens, LIKELIEST, torch.where(own >= 0.1, TENTH, RARER))
        most, large = probs.amax(dim=-1), torch.where(probs >= 0.1, probs, 0).sum(dim=-1)
        tenth = large - torch.where(most >= 0.1, most, 0)
        members = [classes == kind for kind in CLASSES]
        expected = [most, tenth, 1 - most - tenth]
        ratios = torch.ones_like(tokens)
        columns = {"log_p": own.log()}
        if q is not None:
            log_q, drafted = q.prob(tokens).log(), dense[1]
            apart = (log_q - own.log()).nan_to_num(nan=0.0, posinf=99.0, neginf=-99.0)
            ratios = torch.bucketize(apart, torch.tensor(EDGES, dtype=torch.float64, device=apart.device)) + 1
            members.append(apart > 0)
            columns |= {"log_q": log_q, "draft_argmax": q.argmax == tokens}
            expected.append(torch.where(drafted > probs, probs, 0).sum(dim=-1))
        stacked = (torch.stack(part, dim=1).double().cpu().numpy() for part in (members, expected))
        factors = log_factors(p, q, ids, self.sampling, self.tolerance, dense)
        columns = {name: values.float().cpu().numpy() for name, values in columns.items()}
        return ScoredText(
            factors, classes.cpu().numpy(), ratios.cpu().numpy(), *stacked, tokens=np.array(ids), columns=columns
        )


def judge_checkpoint(checkpoint: TextScorer, false_alarm: float, confidence: float) -> Finding:
    """What the texts that it scored show.

    Args:
        false_alarm: chance that a sound engine is refuted, if the checkpoint is its model.
        confidence: of bounds.
    """
    if not any(checkpoint.texts.values()):
        return Finding(question=QUESTION, verdict=NOT_ASKED, answer="No texts were sampled.")
    rows = share_rows(checkpoint.texts, checkpoint.sets, confidence)
    wealth = {mode: checkpoint.evidence(mode) for mode in Mode}
    reached = {mode: min(e_value(path), 999.0) for mode, path in wealth.items()}
    rejected = rejected_at(wealth[Mode.SPECULATIVE], false_alarm)
    numbers = {
        "checkpoint": checkpoint.name,
        "tokens": {str(mode): len(path) for mode, path in wealth.items()},
        "log10_evidence": reached[Mode.SPECULATIVE],
        "log10_evidence_of_plain": reached[Mode.PLAIN],
        "rejected_after_tokens": rejected,
        "excluded_tokens": {str(mode): checkpoint.excluded(mode) for mode in Mode},
        "false_alarm": false_alarm,
        "bound": _largest(rows, Mode.SPECULATIVE),
        "bound_of_difference": _largest(rows, DIFFERENCE),
    }
    count, plain = len(wealth[Mode.SPECULATIVE]), reached[Mode.PLAIN]
    if checkpoint.refutes(false_alarm):
        verdict = REFUTED
        answer = f"No: speculative texts are refuted after {rejected:,} tokens, and plain ones are not."
    elif rejected is not None or plain >= math.log10(DOUBT):
        verdict = CANNOT_TELL
        answer = (
            f"Cannot tell: evidence of 10^{plain:.1f} says that plain texts do not follow the checkpoint either "
            f"(speculative ones: 10^{reached[Mode.SPECULATIVE]:.1f}), as with other weights, or coarser arithmetic."
        )
    elif excluded := checkpoint.excluded(Mode.SPECULATIVE):
        verdict = CANNOT_TELL
        answer = (
            f"Cannot tell: the checkpoint excludes {excluded} of {count:,} speculative tokens and no plain one, which "
            "may be arithmetic that both ways share. Raise protocol.tolerance, or sample more."
        )
    else:
        verdict = NOT_REFUTED
        answer = f"No difference from the checkpoint was found in {count:,} speculative tokens."
    power = (
        f"Shares of sets of tokens in speculative texts differ from the checkpoint's by at most {numbers['bound']:.3f} "
        f"a token, and from plain texts' by at most {numbers['bound_of_difference']:.3f} ({confidence:.0%} confidence)."
    )
    return Finding(question=QUESTION, verdict=verdict, answer=answer, power=power, numbers=numbers, rows={SHARES: rows})


def share_rows(texts: dict[Mode, list[ScoredText]], sets: Sequence[str], confidence: float) -> list[ShareRow]:
    """The rows of both modes and of their difference.

    In a text that follows the checkpoint, the sum over tokens of (in the set) - (probability of the set) has mean 0.
    Student's interval is over texts, whose number is no matter of chance, and its doubt is shared by the sets.
    """
    rows, parts = [], {}
    for mode in Mode:
        sums = np.array([(text.members - text.expected).sum(axis=0) for text in texts[mode]])
        tokens = max(sum(len(text.members) for text in texts[mode]), 1)
        shares, expected = (
            sum(column(text).sum(axis=0) for text in texts[mode]) / tokens
            for column in (lambda text: text.members, lambda text: text.expected)
        )
        parts[mode] = sums.mean(axis=0) * len(sums) / tokens, sums.var(axis=0, ddof=1) * len(sums) / tokens**2, tokens
        rows += _rows(str(mode), sets, parts[mode], confidence, len(sums), list(zip(shares, expected, strict=True)))
    one, other = parts[Mode.SPECULATIVE], parts[Mode.PLAIN]
    apart = one[0] - other[0], one[1] + other[1], min(one[2], other[2])
    return rows + _rows(DIFFERENCE, sets, apart, confidence, len(texts[Mode.PLAIN]), [(None, None)] * len(sets))


def _rows(
    mode: str,
    sets: Sequence[str],
    part: tuple[np.ndarray, np.ndarray, int],
    confidence: float,
    texts: int,
    shares: Sequence[tuple[float | None, float | None]],
) -> list[ShareRow]:
    means, variances, tokens = part
    doubt = (1 - confidence) / (2 * len(sets))
    quantile, unseen = float(stats.t.isf(doubt, max(texts - 1, 1))), -math.log(1 - confidence) / tokens
    rows = []
    for number, which in enumerate(sets):
        bound = max(abs(float(means[number])) + quantile * math.sqrt(float(variances[number])), unseen)
        share, expected = (None if value is None else float(value) for value in shares[number])
        rows.append(ShareRow(mode, which, tokens, share, expected, float(means[number]), min(1.0, bound)))
    return rows


def _largest(rows: Sequence[ShareRow], mode: str) -> float:
    return max(row.bound for row in rows if row.mode == mode)
