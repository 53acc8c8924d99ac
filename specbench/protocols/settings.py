"""What protocols refuse: arguments out of range (such as rounds), what they would silently ignore, and runs that they
cannot measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.core.checks import MOST_ROUNDS, check_count, check_seconds
from specbench.core.conf import config_name
from specbench.core.errors import ConfigError
from specbench.core.sampling_params import DEFAULTS, END, REQUEST, SHOWN, SamplingParams, in_groups
from specbench.metrics.run_row import COLUMNS_OF
from specbench.protocols.protocol import Ignored, MeasurementProtocol, RunContext, options_of
from specbench.replay.survival import LARGEST_GAMMA
from specbench.rules import replayable
from specbench.rules.rule import rule_of

OF_MODELS = ("pair", "drafter", "engine", "parallel", "workload", "max_new_tokens")
NO_MODEL = "It loads no model; leave it out."
NO_TEXTS: Ignored = dict.fromkeys(in_groups(END, REQUEST, SHOWN), "It decodes no text of yours; leave it out.")
NOTHING_SHOWN: Ignored = dict.fromkeys(in_groups(SHOWN), "It shows no text; leave it out, or use protocol=decode.")
OWN_SAMPLES: Ignored = {**NOTHING_SHOWN, "n": "Use protocol.samples."}
NOTHING: Ignored = {}
NO_SOURCE = "It samples from no engine under test; leave it out, or use protocol=judge."


def check_gammas(key: str, values: object, least: int = 0) -> list[int]:
    """A list of different draft lengths, at least ``least`` of them. Raises ConfigError for anything else."""
    return _different(key, values, least, 0, LARGEST_GAMMA)


def check_drafting(key: str, gammas: list[int], remedy: str = "Add one above 0, or give [] for none.") -> list[int]:
    """The draft lengths, if there are none or one is above 0. Raises ConfigError for [0]."""
    if gammas == [0]:
        raise ConfigError(key, gammas, "none of them drafts", remedy)
    return gammas


def check_decoded(gammas: object, decoded: object, done: str) -> tuple[list[int], list[int]]:
    """The draft lengths of protocol.gammas, and those of protocol.decoded, which are some of them.

    Args:
        done: what is done with all of them, such as "replayed".

    Raises:
        ConfigError: anything else.
    """
    lengths, chosen = check_gammas("protocol.gammas", gammas, 1), check_gammas("protocol.decoded", decoded, 1)
    if missing := set(chosen) - set(lengths):
        remedy = "Add them to protocol.gammas, or leave them out."
        raise ConfigError("protocol.decoded", chosen, f"{sorted(missing)} are not {done}", remedy)
    return lengths, chosen


def check_counts(key: str, values: object, least: int = 1) -> list[int]:
    """A list of different counts, in order. Raises ConfigError for anything else."""
    return sorted(_different(key, values, 1, least))


def _different(key: str, values: object, fewest: int, *bounds: int) -> list[int]:
    """The numbers of a list. Raises ConfigError for no list, too few numbers, equal ones, or one out of bounds."""
    remedy = f"Give different whole numbers from {' to '.join(map(str, bounds))}, such as [1,2,4]."
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ConfigError(key, values, "not a list", remedy)
    numbers = [check_count(key, value, *bounds) for value in values]
    if len(set(numbers)) < len(numbers) or len(numbers) < fewest:
        raise ConfigError(key, numbers, "empty or repeated", remedy)
    return numbers


@dataclass(frozen=True)
class RoundSettings:
    """How often batches are decoded.

    Attributes:
        rounds: at least so often.
        max_rounds: at most, where rounds scatter.
        seconds: once there are ``rounds``, no round begins that would end so long after the first began; 0 is no limit.
    """

    rounds: int
    max_rounds: int
    seconds: float | int

    def __post_init__(self) -> None:
        check_count("protocol.rounds", self.rounds, 1, MOST_ROUNDS)
        check_count("protocol.max_rounds", self.max_rounds, 1, MOST_ROUNDS)
        check_seconds("protocol.seconds", self.seconds)
        if self.max_rounds < self.rounds:
            remedy = f"Use {self.rounds} or more, or fewer rounds."
            raise ConfigError("protocol.max_rounds", self.max_rounds, f"below protocol.rounds={self.rounds}", remedy)


def unused(protocol: MeasurementProtocol) -> dict[str, str | None]:
    """The keys that a protocol makes no use of, with what to know instead (see ProtocolOptions).

    Raises:
        ConfigError: own_conditions names a key that has no columns.
    """
    options = options_of(protocol)
    for key in options.own_conditions:
        if key not in COLUMNS_OF:
            problem = f"own_conditions names {key!r}, which is no key of the configuration"
            remedy = f"Use some of {', '.join(COLUMNS_OF)}."
            raise ConfigError("protocol", config_name("protocol", protocol), problem, remedy)
    of_models = {} if protocol.needs_models else dict.fromkeys(OF_MODELS, NO_MODEL)
    return {**of_models, **({} if options.reads_source else {"source": NO_SOURCE}), **options.own_conditions}


def unused_of_lines(protocol: MeasurementProtocol) -> dict[str, str | None]:
    """The same of what a line of a workload may have of its own: its gamma too, if the protocol drafts nothing."""
    return {**({} if options_of(protocol).drafts else {"gamma": None}), **unused(protocol)}


def check_conditions(values: Mapping[str, str], ignored: Mapping[str, str | None], protocol: str) -> None:
    """Refuses a command line that asks for what the protocol would ignore.

    Args:
        values: by key, such as "sampler.top_p".
        ignored: what ``unused`` returns.
        protocol: its name.

    Raises:
        ConfigError: names the key, its value, and what to do instead.
    """
    for key, value in sorted(values.items()):
        remedy = ignored.get(key.partition(".")[0])
        if remedy is not None:
            raise ConfigError(key, value, f"protocol={protocol} would ignore it", remedy)


def check_parameters(sampling: SamplingParams, protocol: MeasurementProtocol) -> None:
    """Refuses sampling parameters that the protocol would ignore.

    Raises:
        ConfigError: names the parameter, its value, and what to do instead.
    """
    ignored = options_of(protocol).ignored_parameters
    if ignored is None:
        ignored = NOTHING_SHOWN if protocol.needs_models else NO_TEXTS
    for name, remedy in ignored.items():
        value = getattr(sampling, name)
        searched = name == "skip_special_tokens" and sampling.stop  # stop strings are looked for in the text as shown
        if value != DEFAULTS[name] and not searched:
            problem = f"protocol={config_name('protocol', protocol)} would ignore it"
            raise ConfigError(f"sampler.{name}", list(value) if isinstance(value, tuple) else value, problem, remedy)


def check_draft_model(context: RunContext) -> None:
    """Raises ConfigError for a drafter that says that its drafts have no probabilities."""
    if context.drafter is not None and not context.drafter.has_probabilities:
        raise no_probabilities(context.drafter)


def no_probabilities(drafter: object) -> ConfigError:
    """Of a drafter without a model."""
    problem = "has no probabilities that could be recorded"
    return ConfigError("drafter", config_name("drafter", drafter), problem, "Use drafter=model or drafter=layer_skip.")


def check_chains(context: RunContext) -> None:
    """Raises ConfigError for a drafter of trees, if what is measured is known of chains alone."""
    if context.drafter is not None and context.drafter.drafts_trees:
        name = config_name("drafter", context.drafter)
        raise ConfigError("drafter", name, "drafts trees, and this protocol knows chains alone", "Use drafter=model.")


def check_fixed_lengths(context: RunContext) -> None:
    """Raises ConfigError for a drafter that ends drafts by a policy, if what is measured is known of gamma tokens."""
    if context.drafter is not None and context.drafter.policy.kind != "fixed":
        problem = "this protocol knows drafts of gamma tokens alone"
        remedy = "Use drafter.policy=fixed; protocol=replay tells what policies would accept, from a trace."
        raise ConfigError("drafter.policy", context.drafter.policy.kind, problem, remedy)


def check_no_history(context: RunContext) -> None:
    """Raises ConfigError for processors, penalties and bans if steps are made up, without a text before any token."""
    for name, value in context.sampling.shaping.items():
        remedy = "Leave it out: only decoded and recorded texts have it."
        raise ConfigError(f"sampler.{name}", value, "steps are made up, without texts", remedy)
    check_no_processors(context)


def check_no_processors(context: RunContext) -> None:
    """Raises ConfigError for processors if steps are made up."""
    if context.processors:
        remedy = "Leave them out: only decoded and recorded texts have them."
        raise ConfigError("sampler.processors", context.processors, "steps are made up, without texts", remedy)


def check_survival(context: RunContext) -> None:
    """Raises ConfigError for a verifier whose rule has no replay, or a drafter of trees or of lengths of its own."""
    check_chains(context)
    check_fixed_lengths(context)
    rule = rule_of(context.verifier)
    if rule.token_cost is None:
        remedy = (
            f"Use a verifier of rule {' or '.join(info.name for info in replayable())}, or give its Rule a token_cost."
        )
        raise ConfigError("verifier", context.verifier_name, f"its rule, {rule.name}, has no replay", remedy)
