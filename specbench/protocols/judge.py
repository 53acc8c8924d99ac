"""The protocol ``judge``: does an engine that people run write the same texts with speculation as without?

It samples texts from ``source`` both ways, asks the questions of :mod:`specbench.protocols.judging`, and ends in a
certificate. The command fails if the engine is refuted.
"""

import json
import shlex
from collections.abc import Collection, Sequence
from typing import ClassVar

from matplotlib.figure import Figure

from specbench.core.checks import check_chance, check_count, check_seconds
from specbench.core.errors import ConfigError, message_of
from specbench.core.machine.progress import say
from specbench.core.machine.provenance import environment
from specbench.exactness.two_sample.bounds import ALL, BiasRow
from specbench.exactness.two_sample.forks import EngineFork
from specbench.exactness.two_sample.power import PowerRow
from specbench.metrics.findings import SHARES
from specbench.protocols.judging.certificate import FIGURE, MARKDOWN, Judgement
from specbench.protocols.judging.checkpoint import ShareRow, judge_checkpoint
from specbench.protocols.judging.checks import CHECKS, CheckRow, judge_checks
from specbench.protocols.judging.distribution import BIAS, POWER, SampleLimits, judge_distribution
from specbench.protocols.judging.finding import Finding
from specbench.protocols.judging.greedy import FORKS, judge_greedy
from specbench.protocols.judging.sampler import JudgedPrompt, Sampler, prompts_of
from specbench.protocols.judging.speed import SPEED, SpeedRow, judge_speed
from specbench.protocols.judging.text_scorer import TextScorer
from specbench.protocols.protocol import Conditions, Ignored, Outcome, ParquetTable, RunContext
from specbench.reports.plots import comparisons as plots
from specbench.sources import Mode, Source
from specbench.sources.contract import SAMPLED

SCHEMAS = {BIAS: BiasRow, POWER: PowerRow, SHARES: ShareRow, FORKS: EngineFork, CHECKS: CheckRow, SPEED: SpeedRow}
TEXTS = 10_000
LENGTH, GREEDY_LENGTH = 8, 48  # tokens of texts that are sampled as drawn, and at temperature 0
MOST_COMPARED = 64  # tokens of a recorded text, unless more are requested: bounds of longer ones take minutes
USUAL_GAMMA = 4  # of an engine that does not say how many tokens it drafts
# A source may be made of these; what it is made of stands in the column ``config``.
OF_ENGINE = ("pair", "drafter", "engine", "verifier", "gamma", "batch_size", "dtype")
NO_WORKLOAD = "It has prompts of its own, as plain text; see protocol.prompts."
_REQUEST = "Each text is a request of its own; leave it out."


class JudgeProtocol:
    """See the module.

    Args:
        texts: sampled to compare distributions, both modes together, at most; None is 10,000, or all of a file.
        minutes: after which no further texts are sampled for that; 0 is no limit.
        prompts: how many of the shipped prompts are used; a file of texts has its own.
        length: tokens of these texts, of which more than gamma + 1 reach beyond the first step of speculation; None is
            8, or those of the longest text of a file, up to 64.
        false_alarm: chance that a sound engine is refuted by its distribution.
        power: with which biases are found, and confidence of bounds.
        greedy_length: tokens of texts at temperature 0, and of those that are timed; 0 leaves the former out, and None
            is 48, or those of the longest text of a file.
        rounds: of timed texts; 0 leaves them out.
        target, draft: checkpoints of the engine's models, which score the texts; see :func:`specbench.load_pair`.
        tolerance: logit units by which the engine may differ from the target at the edge of truncated distributions;
            None is the dtype's rounding.

    Raises:
        ConfigError: a number out of its range.
    """

    needs_models = False
    reads_source = True
    times = True
    ignored_parameters: ClassVar[Ignored] = {"n": _REQUEST, "seed": "Use seed.", "max_tokens": "Use protocol.length."}
    own_conditions: ClassVar[Conditions] = {
        **dict.fromkeys(OF_ENGINE),
        "max_new_tokens": "Use protocol.length.",
        "workload": NO_WORKLOAD,
    }

    def __init__(
        self,
        texts: int | None = None,
        minutes: float | int = 20,
        prompts: int = 8,
        length: int | None = None,
        false_alarm: float | int = 1e-4,
        power: float | int = 0.99,
        greedy_length: int | None = None,
        rounds: int = 2,
        target: str | None = None,
        draft: str | None = None,
        tolerance: float | None = None,
    ):
        self.prompts = check_count("protocol.prompts", prompts)
        self.greedy_length = None if greedy_length is None else check_count("protocol.greedy_length", greedy_length, 0)
        self.rounds = check_count("protocol.rounds", rounds, 0)
        if draft is not None and target is None:
            raise ConfigError("protocol.draft", draft, "texts are scored with a target", "Name protocol.target too.")
        if tolerance is not None:
            remedy = "Use null, or logit units such as 0.1."
            tolerance = check_seconds("protocol.tolerance", tolerance, remedy, "no number of logit units")
        self.target, self.draft, self.tolerance = target, draft, tolerance
        self.texts = None if texts is None else check_count("protocol.texts", texts, 2)
        self.seconds = 60 * check_seconds("protocol.minutes", minutes)
        self.length = None if length is None else check_count("protocol.length", length)
        self.false_alarm = check_chance("protocol.false_alarm", false_alarm)
        self.power = check_chance("protocol.power", power)

    def run(self, context: RunContext) -> Outcome:
        source = _checked(context, self.target)
        source.open()
        try:
            _check_members(source)
            judgement = self._judged(context, source)
        except Exception:
            if context.folder is not None and (texts := context.folder / SAMPLED).exists():
                command = f"python -m specbench resume={shlex.quote(str(context.folder.parent))}"
                say(f"Texts sampled so far are in {texts}. {command} goes on from them.")
            raise
        finally:
            _close(source)
        rows = {name: rows for finding in judgement.findings for name, rows in finding.rows.items()}
        figure = _figure(rows.get(BIAS, []), self.power, judgement.engine)
        place = MARKDOWN if context.folder is None else context.folder / MARKDOWN
        return Outcome(
            f"{judgement.sentence} Certificate: {place}",
            {
                **(context.columns if getattr(source, "of_run", False) else {}),
                **({"gamma": self._gamma(context, source)} if self._reads_gamma(source) else {}),
            },
            {name: ParquetTable(rows.get(name, []), kind) for name, kind in SCHEMAS.items()},
            {} if figure is None else {FIGURE: figure},
            judgement.pages(figure),
            failure=judgement.failure,
        )

    def _reads_gamma(self, source: Source) -> bool:
        """Whether the judgement depends on the run's gamma: of a source made of it, or of a predicted acceptance."""
        return getattr(source, "of_run", False) or (self.draft is not None and not hasattr(source, "gamma"))

    def _gamma(self, context: RunContext, source: Source) -> int:
        """Tokens that the engine drafts a step, as far as is known."""
        return context.gamma if self._reads_gamma(source) else getattr(source, "gamma", USUAL_GAMMA)

    def _judged(self, context: RunContext, source: Source) -> Judgement:
        missing = [str(mode) for mode in Mode if mode not in source.modes]
        if missing:
            remedy = "Give it both ways: the yaml in conf/source says how."
            if getattr(source, "recorded", False):
                remedy = f'Add lines with "mode": "{missing[0]}".'
            raise ConfigError("source", source.engine, f"has no {' and no '.join(missing)} texts", remedy)
        checkpoint = self._checkpoint(context, source)
        encode = None if checkpoint is None else checkpoint.encode
        prompts, sentences = (prompts_of(source, self.prompts, lists, encode) for lists in (encode is None, False))
        sentences = [sentence for sentence in sentences if sentence.name in getattr(source, "greedy", (sentence.name,))]
        longest, longest_greedy = getattr(source, "longest", (LENGTH, GREEDY_LENGTH))
        texts, length = self.texts or _paired_texts(source) or TEXTS, self.length or min(longest, MOST_COMPARED)
        limits = SampleLimits(texts, self.seconds, length, self.false_alarm, self.power)
        greedy_length = longest_greedy if self.greedy_length is None else self.greedy_length
        sampler = Sampler(source, context.sampling, context.seed, context.folder)
        say(f"judging {source.engine} on {len(prompts)} prompts; {_compared(sampler, limits)}")
        findings: list[Finding] = [judge_distribution(sampler, prompts, limits, context.journal, checkpoint)]
        if checkpoint is not None:
            findings.append(judge_checkpoint(checkpoint, limits.false_alarm, limits.power))
        say(" ".join(finding.answer for finding in findings))
        finding, greedy = judge_greedy(sampler, sentences, greedy_length, checkpoint)
        say(finding.answer)
        findings.append(finding)
        gamma = self._gamma(context, source)
        findings.append(judge_checks(sampler, sentences, greedy, gamma))
        drafts = getattr(source, "draft", "") is not None  # a source that drafts without a model has None
        scorer = checkpoint if drafts else None
        findings.append(judge_speed(sampler, sentences, greedy_length or limits.length, self.rounds, scorer, gamma))
        method = context.verifier_name if getattr(source, "of_run", False) else getattr(source, "method", None)
        return Judgement(
            engine=source.engine,
            method=method,
            sampling=context.sampling,
            texts=sampler.texts,
            empty=sampler.empty,
            findings=findings,
            scope=_scope(sampler, method, prompts, limits, context.processors),
            command=context.command,
            environment=environment(context.device),
        )

    def _checkpoint(self, context: RunContext, source: Source) -> TextScorer | None:
        if self.target is None or context.sampling.greedy:
            return None
        if names := getattr(source, "without_prompt", []):
            problem = f"it reads the prompts of texts, and lines of prompt {names[0]!r} have no prompt"
            raise ConfigError("protocol.target", self.target, problem, "Add it to the lines, or leave the target out.")
        device, dtype = str(context.device), str(context.dtype).removeprefix("torch.")
        return TextScorer(self.target, self.draft, device, dtype, context.sampling, self.tolerance)


def _check_members(source: Source) -> None:
    """Raises ConfigError for an attribute of another kind, which would be noticed when all texts are there."""
    for name, kind in (("engine", str), ("modes", Collection), ("unsupported", Collection), ("takes_seeds", bool)):
        value = getattr(source, name)
        if not isinstance(value, kind) or (kind is Collection and isinstance(value, str)):
            remedy = "See docs/sources.md for what a source of your own has."
            raise ConfigError("source", type(source).__name__, f"its {name} is {value!r}", remedy)


def _close(source: Source) -> None:
    """Closes a source. What goes wrong with that costs no verdict."""
    try:
        source.close()
    except Exception as error:
        say(f"source: {source.engine} could not be closed ({message_of(error)}).", style="yellow")


def _checked(context: RunContext, target: str | None) -> Source:
    """The source. Raises ConfigError for none, and for parts of the command line that it would ignore."""
    source = context.source
    if source is None:
        raise ConfigError("source", None, "protocol=judge judges an engine", "Name one, such as source=llama_server.")
    if target is not None and getattr(source, "chat", False):
        problem = "with source.chat=true the server's chat template makes other prompts than the checkpoint reads"
        raise ConfigError("protocol.target", target, problem, "Leave it out, or leave source.chat out.")
    for name, value in context.sampling.further_truncations.items() if target is not None else ():
        problem = "under it nothing is known of which tokens rounding leaves in doubt (exactness/texts/support.py)"
        raise ConfigError(f"sampler.{name}", value, problem, "Leave it out, or leave protocol.target out.")
    if getattr(source, "of_run", False):
        return source
    for key, value, usual, problem in (
        ("verifier", context.verifier_name, "masked", "has a verifier of its own"),
        ("sampler.processors", context.processors, "", "does not run them"),
    ):
        if value != usual:
            raise ConfigError(key, value, f"the engine under test {problem}", "Leave it out, or use source=specbench.")
    return source


def _paired_texts(source: Source) -> int:
    """Texts of a file that have a partner in the other mode; 0 for a source that writes them."""
    return 2 * sum(getattr(source, "pairs", {}).values())


def _compared(sampler: Sampler, limits: SampleLimits) -> str:
    """Says on what distributions are compared, and what of a file is left out."""
    source, total = sampler.source, _paired_texts(sampler.source)
    if sampler.sampling.greedy or (hasattr(source, "pairs") and not total):
        return "no distributions are compared"
    longest, _ = getattr(source, "longest", (limits.length, 0))
    left = [f"of up to {longest}"] if limits.length < longest else []
    left += [f"{limits.texts:,} of {total:,} texts at most"] if limits.texts < total else []
    tokens = f"{limits.length} token{'s'[: limits.length > 1]}"
    return f"distributions are compared on texts of {tokens}" + (f" ({', '.join(left)})" if left else "")


def _scope(
    sampler: Sampler, method: str | None, prompts: Sequence[JudgedPrompt], limits: SampleLimits, processors: str
) -> list[str]:
    changed = {**sampler.sampling.numbers, **sampler.sampling.beside_numbers}
    changed |= {"processors": json.loads(processors)} if processors else {}
    named = ", ".join(
        f"{name} {value:g}" if isinstance(value, float | int) else f"{name} {json.dumps(value, default=str)}"
        for name, value in changed.items()
    )
    engine = f"{sampler.source.engine} ({method})" if method else sampler.source.engine
    template = "to which the server applied its" if getattr(sampler.source, "chat", False) else "sent without a"
    return [
        f"{engine}: {sampler.texts:,} texts from {len(prompts)} prompts, {template} chat template",
        "all of them are in texts.jsonl, but for those that were timed",
        f"{_compared(sampler, limits)}; {named}",
        f"false alarm {limits.false_alarm:g} for that, whatever the number of looks; bounds at {limits.power:.0%}",
        f"empty texts that nothing ended: {sampler.empty:,}",
    ]


def _figure(rows: Sequence[BiasRow], confidence: float, title: str) -> Figure | None:
    bounded = [(row, (row.observed, row.bound)) for row in rows if row.observed is not None and row.bound is not None]
    places = [(str(row.position or "all"), *numbers) for row, numbers in bounded if row.prompt == ALL]
    prompts = [(row.prompt, *numbers) for row, numbers in bounded if row.prompt != ALL]
    if not bounded:
        return None
    return plots.bias(places, prompts, confidence, title)
