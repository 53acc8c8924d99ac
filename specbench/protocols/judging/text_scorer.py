"""Scores texts of an engine with a checkpoint: evidence for each token, and the sets of tokens that it belongs to."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specbench.core.errors import ConfigError
from specbench.decoding import logits_along, rows_along
from specbench.exactness.statistics.bets import rejected_at
from specbench.exactness.texts.eprocess import BETS, e_value, log_factors, log_wealth, odds_class
from specbench.exactness.two_sample.bets import CLASSES, LIKELIEST, RARER, TENTH
from specbench.models import CachedModel
from specbench.models.loading import Pair, load_pair
from specbench.protocols.model_context import in_groups
from specbench.sampling import SamplingParams
from specbench.sources import Mode, TextCompletion

BATCH = 32  # texts of a prompt that are scored together
DOUBT = 10.0  # evidence to one against plain texts, from which on the checkpoint is not the engine's model
# Log factors of a text with tokens that the checkpoint excludes; one token that it excludes may come with others.
EXCLUDED = {"speculative": math.log(1.9), "plain": math.log(0.1)}
DRAFTED = "those that the draft makes likelier"


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
        try:
            self.pair: Pair = load_pair(target, draft, device=device, dtype=dtype, chat=False)
        except ConfigError as error:  # which speaks of the run's own pair
            key = error.key.replace("pair.", "protocol.", 1)
            raise type(error)(key, error.value, error.problem, error.remedy) from error
        loaded = {"target": self.pair.target, "draft": self.pair.draft}
        self.models = [
            CachedModel(model, self.pair.vocab_size, name) for name, model in loaded.items() if model is not None
        ]
        self.sampling, self.tolerance = self.pair.resolved(sampling), tolerance
        self.texts: dict[Mode, list[ScoredText]] = {mode: [] for mode in Mode}
        self._scores: dict[tuple[tuple[int, ...], tuple[int, ...]], ScoredText] = {}

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.pair.encode(text))

    def add(self, completions: Sequence[TextCompletion], mode: Mode) -> None:
        """Scores further texts of a mode, which then count in what is said of it."""
        self.texts[mode] += self.score(completions)

    def score(self, completions: Sequence[TextCompletion]) -> list[ScoredText]:
        """Scores texts. Equal texts are scored once.

        Raises:
            ConfigError: texts without token ids, or with ids that the checkpoint does not have.
        """
        keys = [self.token_ids_of(completion) for completion in completions]
        missing: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        for prompt, ids in dict.fromkeys(key for key in keys if key[1] and key not in self._scores):
            missing[prompt].append(ids)
        for prompt, texts in missing.items():
            for part in in_groups(texts, BATCH):
                for ids, scored in zip(part, self._scored(prompt, part), strict=True):
                    self._scores[prompt, ids] = scored
        tokens, sets = np.zeros(0, dtype=np.int64), np.zeros((0, len(self.sets)))
        nothing = ScoredText(np.zeros((0, len(BETS))), tokens, tokens, sets, sets)
        return [self._scores[key] if key[1] else nothing for key in keys]

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
            for number, factor in enumerate(factors):
                owed += EXCLUDED["plain"] * (number < len(plain) and plain[number].excluded > 0)
                if len(factor):
                    excluded = np.isposinf(factor)
                    factors[number] = np.where(excluded, 0.0, factor)
                    factors[number][0], owed = factors[number][0] + owed, 0.0
                    if excluded.any():
                        factors[number][excluded.any(axis=1).argmax()] += EXCLUDED["speculative"]
        return log_wealth(np.concatenate(factors or [np.zeros((0, len(BETS)))]))

    def excluded(self, mode: Mode) -> int:
        """How many tokens of a mode the checkpoint excludes."""
        return sum(text.excluded for text in self.texts[mode])

    def refutes(self, false_alarm: float) -> bool:
        """Whether speculative texts are refuted, and plain ones show nothing."""
        plain = e_value(self.evidence(Mode.PLAIN))
        return plain < math.log10(DOUBT) and rejected_at(self.evidence(Mode.SPECULATIVE), false_alarm) is not None

    def token_ids_of(self, text: TextCompletion) -> tuple[tuple[int, ...], tuple[int, ...]]:
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
        for ids, sent, along in zip(texts, fed, logits[0], strict=True):
            if ids and ids[-1] < 0:
                sent[-1] = ends[int(along[-1, ends].argmax())]
        return [self._text(prompt, ids, *of_text) for ids, *of_text in zip(fed, *logits, strict=True)]

    def _text(
        self, prompt: tuple[int, ...], ids: list[int], target: torch.Tensor, draft: torch.Tensor | None = None
    ) -> ScoredText:
        p = rows_along(target, self.sampling, prompt, ids)
        q = None if draft is None else rows_along(draft, self.sampling, prompt, ids)
        tokens = torch.tensor(ids, device=p.logits.device)
        dense = [rows.probs() for rows in (p, q) if rows is not None]
        probs, prob = dense[0], p.prob(tokens)
        classes = torch.where(p.argmax == tokens, LIKELIEST, torch.where(prob >= 0.1, TENTH, RARER))
        most, large = probs.amax(dim=-1), torch.where(probs >= 0.1, probs, 0).sum(dim=-1)
        tenth = large - torch.where(most >= 0.1, most, 0)
        members = [classes == kind for kind in CLASSES]
        expected = [most, tenth, 1 - most - tenth]
        ratios = torch.ones_like(tokens)
        columns = {"log_p": prob.log()}
        if q is not None:
            of_draft, drafted = q.prob(tokens), dense[1]
            log_q, ratios = of_draft.log(), odds_class(prob, of_draft) + 1
            members.append(of_draft > prob)
            columns |= {"log_q": log_q, "draft_argmax": q.argmax == tokens}
            expected.append(torch.where(drafted > probs, probs, 0).sum(dim=-1))
        stacked = (torch.stack(part, dim=1).double().cpu().numpy() for part in (members, expected))
        factors = log_factors(p, q, ids, self.sampling, self.tolerance, dense)
        columns = {name: values.float().cpu().numpy() for name, values in columns.items()}
        return ScoredText(
            factors, classes.cpu().numpy(), ratios.cpu().numpy(), *stacked, tokens=np.array(ids), columns=columns
        )
