"""T > 0, with the engine's weights at hand: are texts distributed as the checkpoint says? It scores every token.

Where two samples must learn which tokens are likely, a checkpoint knows. The bets of exactness/texts/eprocess.py are
settled on both ways of decoding. An engine computes with roundings and quantisations of its own, so that its plain
texts may differ from the checkpoint as well: speculation is refuted only if plain texts show nothing.

A token that the checkpoint excludes is no proof against speculation, since the plain engine may emit it too, as rarely:
where a token has massive activations, 8-bit activations change logits by 9. So there is a fair bet on which way of
decoding writes the next text with such a token: a speculative one multiplies the wealth by 1.9, and a plain one by 0.1.
Texts are bet on, since what lets in one such token in a text lets in others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from specbench.core.rounding import most
from specbench.exactness.statistics.bets import rejected_at
from specbench.exactness.texts.eprocess import e_value
from specbench.metrics.findings import DIFFERENCE, SHARES
from specbench.metrics.findings import OF_CHECKPOINT as QUESTION
from specbench.protocols.judging.finding import CANNOT_TELL, NOT_REFUTED, REFUTED, Finding, not_asked
from specbench.protocols.judging.text_scorer import ScoredText, TextScorer
from specbench.sources import Mode


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


def judge_checkpoint(checkpoint: TextScorer, false_alarm: float, confidence: float) -> Finding:
    """What the texts that it scored show.

    Args:
        false_alarm: chance that a sound engine is refuted, if the checkpoint is its model.
    """
    if not any(checkpoint.texts.values()):
        return not_asked(QUESTION, "No texts were sampled.")
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
        answer = (
            f"No, if the checkpoint is the engine's model: speculative texts are refuted after {rejected:,} tokens, "
            "and plain ones are not."
        )
    elif plain >= -math.log10(false_alarm):
        verdict = CANNOT_TELL
        answer = (
            f"Evidence of 10^{plain:.1f} says that plain texts do not follow the checkpoint either "
            f"(speculative ones: 10^{reached[Mode.SPECULATIVE]:.1f}), as with other weights, or coarser arithmetic."
        )
    elif rejected is not None:
        verdict = CANNOT_TELL
        answer = (
            f"Evidence against plain texts, of 10^{plain:.1f}, is too large to hold that of "
            f"10^{reached[Mode.SPECULATIVE]:.1f} against speculation. Sample more."
        )
    elif excluded := checkpoint.excluded(Mode.SPECULATIVE):
        verdict = CANNOT_TELL
        answer = (
            f"The checkpoint excludes {excluded} of {count:,} speculative tokens and no plain one, which "
            "may be arithmetic that both ways share. Raise protocol.tolerance, or sample more."
        )
    else:
        verdict = NOT_REFUTED
        answer = f"No difference from the checkpoint was found in {count:,} speculative tokens."
    power = (
        "Shares of sets of tokens in speculative texts differ from the checkpoint's by at most "
        f"{most(numbers['bound'])} a token, and from plain texts' by at most {most(numbers['bound_of_difference'])} "
        f"({confidence:.0%} confidence)."
    )
    return Finding(question=QUESTION, verdict=verdict, answer=answer, power=power, numbers=numbers, rows={SHARES: rows})


def share_rows(texts: dict[Mode, list[ScoredText]], sets: Sequence[str], confidence: float) -> list[ShareRow]:
    """The rows of both modes and of their difference.

    In a text that follows the checkpoint, the sum over tokens of (in the set) - (probability of the set) has mean 0.
    Student's interval is over texts, whose number is no matter of chance, and its doubt is shared by the sets. It is
    too short if few texts are wrong as a whole. So what such texts may make of the share, if none was seen, is added.
    """
    rows, parts = [], {}
    for mode in Mode:
        sums = np.array([(text.members - text.expected).sum(axis=0) for text in texts[mode]])
        tokens = max(sum(len(text.members) for text in texts[mode]), 1)
        shares, expected = (
            sum(column(text).sum(axis=0) for text in texts[mode]) / tokens
            for column in (lambda text: text.members, lambda text: text.expected)
        )
        spread = sums.var(axis=0, ddof=1) if len(sums) > 1 else np.full(len(sets), np.inf)  # one shows none
        parts[mode] = sums.mean(axis=0) * len(sums) / tokens, spread * len(sums) / tokens**2, tokens
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
    quantile, unseen = float(stats.t.isf(doubt, max(texts - 1, 1))), -math.log(1 - confidence) / texts
    rows = []
    for number, which in enumerate(sets):
        bound = abs(float(means[number])) + quantile * math.sqrt(float(variances[number])) + unseen
        share, expected = (None if value is None else float(value) for value in shares[number])
        rows.append(ShareRow(mode, which, tokens, share, expected, float(means[number]), min(1.0, bound)))
    return rows


def _largest(rows: Sequence[ShareRow], mode: str) -> float:
    return max(row.bound for row in rows if row.mode == mode)
