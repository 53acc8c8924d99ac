"""Seeds, batches, ends of texts, texts of one request and log-probabilities: checks of both modes, a row each."""

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scipy import stats

from specbench.core.errors import OutageError, SpecbenchError
from specbench.core.sampling_params import SamplingParams
from specbench.exactness.two_sample.forks import parting
from specbench.exactness.two_sample.pairs import words_of
from specbench.protocols.judging.finding import MEASURED, NOT_ASKED, RECORDED, REFUTED, Finding, not_asked
from specbench.protocols.judging.sampler import JudgedPrompt, Sampler
from specbench.protocols.model_context import in_groups
from specbench.sources import Mode, TextCompletion
from specbench.sources.contract import SourceOfSeveral

QUESTION = "Are seeds, batches, limits, stop strings, several texts and log-probabilities as without speculation?"
CHECKS = "judge_checks.parquet"
PROMPTS, LENGTH = 4, 12  # of the texts
SEVERAL = 8  # texts of one request
SAME_SEED, ALONE, LIMIT, STOP, COPIES, LOGPROBS, COUPLED = (
    "the same seed gives the same text",
    "alone and beside others a text is the same",
    "max_tokens is kept",
    "a stop string ends a text",
    "n texts of one request come, and they are draws of their own",
    "log-probabilities are those of plain decoding",
    "with the same seed, plain and speculative texts are the same",
)
BINDING = (LIMIT, STOP, COPIES)  # broken by speculation alone, or by it more often, they refute the engine
MORE_OFTEN = 1e-4  # level of Fisher's exact test, one-sided, against plain texts that fail in the same way
SEEDED = (SAME_SEED, ALONE, COUPLED)  # only of a source that takes seeds
CLOSE = 0.1  # nats by which two log-probabilities of a token may differ
Greedy = Mapping[Mode, Sequence[TextCompletion]]
Checked = tuple[int, list[tuple[str, str]]]  # how many texts were checked; of each that fails, the way and a detail


@dataclass(frozen=True)
class CheckRow:
    """A check of a mode.

    Attributes:
        check, mode: what was checked.
        cases: texts that were checked; 0 if the source cannot be asked.
        failures: of them, those of this way.
        detail: of the first failure, or why nothing was checked.
        way: in which these texts fail, such as "too long"; empty if a check has one way alone.
    """

    check: str
    mode: str
    cases: int
    failures: int
    detail: str = ""
    way: str = ""


def judge_checks(sampler: Sampler, prompts: Sequence[JudgedPrompt], greedy: Greedy, gamma: int) -> Finding:
    """All checks.

    Args:
        greedy: texts of these prompts at temperature 0, in both modes; empty if there are none.
        gamma: tokens drafted a step, as far as it is known: limits up to gamma + 3 are tried.
    """
    if getattr(sampler.source, "recorded", False):
        overruns = getattr(sampler.source, "overruns", {})
        if not any(wrong for _, wrong in overruns.values()):
            return not_asked(QUESTION, RECORDED)
        return _finding([row for mode in Mode for row in _rows(sampler, LIMIT, mode, overruns.__getitem__)])
    some, stopped, distinct = prompts[:PROMPTS], dict[str, _Stopped](), dict[Mode, set[int]]()

    def seeded(mode: Mode, question: str, at_once: int = PROMPTS) -> list[TextCompletion]:
        requests = [sampler.request(prompt, "seed", LENGTH) for prompt in some]
        return [text for batch in in_groups(requests, at_once) for text in sampler.complete(batch, mode, question)]

    of_each_mode: dict[str, Callable[[Mode], Checked]] = {
        SAME_SEED: lambda mode: _equal(*(seeded(mode, f"same seed, {number}") for number in (1, 2))),
        ALONE: lambda mode: _equal(seeded(mode, "beside others"), seeded(mode, "alone", at_once=1)),
        LIMIT: lambda mode: _limit(sampler, some, gamma + 3, mode),
        STOP: lambda mode: _stop(sampler, prompts, greedy, mode, stopped),
    }
    if isinstance(sampler.source, SourceOfSeveral):
        of_each_mode[COPIES] = lambda mode: _copies(sampler, some, mode, distinct)
    rows = [row for check, ask in of_each_mode.items() for mode in Mode for row in _rows(sampler, check, mode, ask)]
    rows += _rows(sampler, COUPLED, Mode.SPECULATIVE, lambda _: _equal(*(seeded(mode, "coupled") for mode in Mode)))
    rows += _rows(sampler, LOGPROBS, Mode.SPECULATIVE, lambda _: _logprobs(sampler, prompts, greedy))
    return _finding(rows)


def _rows(sampler: Sampler, check: str, mode: Mode, ask: Callable[[Mode], Checked]) -> list[CheckRow]:
    """The rows of a check, one for each way in which texts fail. It raises SpecbenchError if it cannot be asked."""
    try:
        if check in SEEDED and not sampler.source.takes_seeds:
            raise SpecbenchError("it takes no seeds")
        cases, wrong = ask(mode)
    except OutageError:
        raise
    except SpecbenchError as error:
        return [CheckRow(check, mode, 0, 0, f"not checked: {error}")]
    details: dict[str, list[str]] = defaultdict(list)
    for way, detail in wrong:
        details[way].append(detail)
    failed = [CheckRow(check, mode, cases, len(some), some[0], way) for way, some in details.items()]
    return failed or [CheckRow(check, mode, cases, 0)]


def _equal(one: Sequence[TextCompletion], other: Sequence[TextCompletion]) -> Checked:
    unit = "token" if all(completion.token_ids for completion in one) else "character"
    return len(one), [
        ("", f"prompt {a.request.prompt_id!r} parts at {unit} {place + 1}")
        for a, b in zip(one, other, strict=True)
        if (place := parting(*_contents((a, b)))) is not None
    ]


def _contents(texts: Sequence[TextCompletion]) -> list[tuple[int, ...] | str]:
    """The token ids of each text; their characters if a text has no ids."""
    if all(text.token_ids for text in texts):
        return [text.token_ids or () for text in texts]
    return [text.text for text in texts]


def _limit(sampler: Sampler, prompts: Sequence[JudgedPrompt], most: int, mode: Mode) -> Checked:
    requests = [sampler.request(prompt, "limit", limit, mode) for limit in range(1, most + 1) for prompt in prompts]
    wrong = []
    for completion in sampler.complete(requests, mode, "limits"):
        if completion.token_ids is None:
            raise SpecbenchError("it returns no token ids")
        count, limit = len(completion.token_ids), completion.request.max_new_tokens
        if count > limit or (count < limit and completion.finish_reason == "length"):
            detail = f"{count} tokens for max_tokens={limit}, prompt {completion.request.prompt_id!r}"
            wrong.append(("too long" if count > limit else "too short", detail))
    return len(requests), wrong


@dataclass(frozen=True)
class _Stopped:
    """A greedy text, with and without a stop string that it holds.

    Attributes:
        begin: the text before the stop string.
        ends_there: see _ends_at.
    """

    stop: str
    begin: str
    completion: TextCompletion
    ends_there: bool | None


def _stop(
    sampler: Sampler, prompts: Sequence[JudgedPrompt], greedy: Greedy, mode: Mode, plain: dict[str, _Stopped]
) -> Checked:
    """Stop strings are taken from each greedy text: two characters around its middle, which cross tokens' borders.

    Args:
        plain: the plain texts by prompt, once they are there; speculative ones have to end as these do.
    """
    if not sampler.supports("stop") or not greedy:
        raise SpecbenchError("the source takes no stop strings, or has no greedy text")
    wrong, cases = [], 0
    for prompt, text in list(zip(prompts, (completion.text for completion in greedy[mode]), strict=True))[:PROMPTS]:
        stop = text[len(text) // 2 : len(text) // 2 + 2]
        if len(stop.strip()) < 2:
            continue
        sampling = dataclasses.replace(sampler.sampling, temperature=0.0, stop=(stop,))
        request = sampler.request(prompt, 0, greedy[mode][0].request.max_new_tokens, sampling=sampling)
        (completion,) = sampler.complete([request], mode, "stop strings")
        stopped = _Stopped(stop, text[: text.index(stop)], completion, _ends_at(stop, completion.text, text))
        cases += stopped.ends_there is not None
        where = f"stop={stop!r}, prompt {prompt.name!r}: the text is {completion.text[-40:]!r}"
        if stopped.ends_there is False:
            wrong.append(("goes on", where))
        elif mode is Mode.PLAIN:
            plain[prompt.name] = stopped
        elif prompt.name in plain and _cut_otherwise(plain[prompt.name], stopped):
            wrong.append(("cut otherwise", f"{where}, and the plain one {plain[prompt.name].completion.text[-40:]!r}"))
    if not cases:
        raise SpecbenchError("no text came to its stop string")
    return cases, wrong


def _cut_otherwise(one: _Stopped, other: _Stopped) -> bool:
    """Whether two texts are one text, which ended at the same stop string but is shown up to another character.

    An engine may show the stop string, and the rest of its last token; both ways then do. Texts that fork, in tokens or
    characters, say nothing.
    """
    if (one.stop, one.begin) != (other.stop, other.begin) or not (one.ends_there and other.ends_there):
        return False
    texts = [stopped.completion.text.rstrip() for stopped in (one, other)]
    ids = [stopped.completion.token_ids or () for stopped in (one, other)]
    forked = any(a[: len(b)] != b[: len(a)] for a, b in (texts, ids))
    return not forked and texts[0] != texts[1]


def _ends_at(stop: str, shown: str, text: str) -> bool | None:
    """Returns whether a text ended at its stop string; None if it forked from the text without one before that.

    Rounding forks texts at temperature 0 in another batch. Where such a text should end is unknown, unless it shows the
    stop string and goes on.

    Args:
        shown: the text that the engine returned for this stop string.
        text: the one that it returned without, which holds the stop string.
    """
    begin = text[: text.index(stop)]
    _, has_stop, behind = shown.partition(stop)
    if has_stop and len(words_of(behind)) >= 2:  # an engine may end with the stop string's token
        return False
    if begin.startswith(shown.rstrip()):
        return shown.rstrip() == begin.rstrip()
    rest = shown.removeprefix(begin)
    if shown.startswith(begin) and (rest.startswith(stop) or stop.startswith(rest)):
        return rest.startswith(stop)
    return None


def _copies(sampler: Sampler, prompts: Sequence[JudgedPrompt], mode: Mode, distinct: dict[Mode, set[int]]) -> Checked:
    """Texts that an engine draws with the same noise are equal.

    They refute if of each prompt more than half of the plain texts differ, and all speculative ones are equal. Of one
    distribution, whose likeliest text has probability a, eight are equal by chance a^8 and eight others hold four or
    more of other texts: both with a probability of at most 0.012, and 2e-8 for four prompts.

    Args:
        distinct: how many different texts prompts have, by mode, once they are there.
    """
    if sampler.sampling.temperature == 0 or len(prompts) < PROMPTS:
        raise SpecbenchError(f"at temperature 0 texts are equal, and {PROMPTS} prompts are needed")
    requests = [sampler.request(prompt, "several", LENGTH, mode) for prompt in prompts]
    texts = [sampler.several(request, SEVERAL, mode, "several") for request in requests]
    distinct[mode] = {len(set(_contents(some))) for some in texts}
    if Mode.PLAIN not in distinct:  # llama-server takes an n of at most its -np
        raise SpecbenchError("there are no plain texts to compare with")
    if mode is Mode.SPECULATIVE and min(distinct[Mode.PLAIN]) > SEVERAL / 2 and distinct[mode] == {1}:
        problem = f"{SEVERAL} equal texts for each of {len(prompts)} prompts, where most plain ones differ"
        return len(prompts), [("equal texts", problem)] * len(prompts)
    counts = [len(some) for some in texts if len(some) != SEVERAL]
    return len(prompts), [("another number", f"{count} texts for n={SEVERAL}") for count in counts]


def _logprobs(sampler: Sampler, prompts: Sequence[JudgedPrompt], greedy: Greedy) -> Checked:
    """Of greedy texts, up to where they part from the plain ones."""
    if not sampler.supports("logprobs") or not greedy:
        raise SpecbenchError("the source returns none")
    plain = greedy[Mode.PLAIN][:PROMPTS]
    sampling: SamplingParams = plain[0].request.sampling
    requests = [sampler.request(p, 0, plain[0].request.max_new_tokens, sampling=sampling) for p in prompts[:PROMPTS]]
    wrong, cases = [], 0
    for one, other in zip(plain, sampler.complete(requests, Mode.SPECULATIVE, "log-probabilities"), strict=True):
        if not one.logprobs or not other.logprobs or not one.token_ids or not other.token_ids:
            continue
        place = parting(one.token_ids, other.token_ids)
        both = list(zip(one.logprobs[:place], other.logprobs[:place], strict=False))
        far = [(a, b) for a, b in both if abs(a - b) > CLOSE]
        cases += 1
        if far:
            a, b = far[0]
            detail = f"{len(far)} of {len(both)} tokens of prompt {one.request.prompt_id!r}, {b:.3f} for {a:.3f}"
            wrong.append(("", detail))
    if not cases:
        raise SpecbenchError("no prompt has token ids and log-probabilities both ways")
    return cases, wrong


def _finding(rows: Sequence[CheckRow]) -> Finding:
    plain = {(row.check, row.way): row for row in rows if row.mode == Mode.PLAIN and row.failures}
    failed = [row for row in rows if row.failures]
    binding = [row for row in failed if row.mode == Mode.SPECULATIVE and row.check in BINDING]
    broken = any(_more_often(row, plain.get((row.check, row.way))) for row in binding)
    measured = {(row.check, row.mode) for row in rows if row.cases}
    verdict = REFUTED if broken else MEASURED if measured else NOT_ASKED
    answer = f"{len(measured) - len({(row.check, row.mode) for row in failed})} of {len(measured)} checks hold"
    answer += f"; {_failures(failed)}." if failed else "." if measured else ": the source cannot be asked."
    remark = ""
    if binding and not broken:
        both = [row for one in binding for row in (one, plain[one.check, one.way])]
        remark = f"Speculative texts fail checks, and plain ones about as often: {_failures(both)}."
    return Finding(question=QUESTION, verdict=verdict, answer=answer, remark=remark, rows={CHECKS: list(rows)})


def _more_often(speculative: CheckRow, plain: CheckRow | None) -> bool:
    """Whether speculative texts fail in a way that no plain text does, or significantly more of them do."""
    if plain is None:
        return True
    table = [[row.failures, row.cases - row.failures] for row in (speculative, plain)]
    return float(stats.fisher_exact(table, alternative="greater").pvalue) < MORE_OFTEN


def _failures(rows: Sequence[CheckRow]) -> str:
    return "; ".join(
        f"{row.check} ({row.mode}): not in {row.failures} of {row.cases}" + (f", {row.way}" if row.way else "")
        for row in rows
    )
