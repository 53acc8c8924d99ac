"""The typed tables of the protocols latency and agreement; reading them needs no PyTorch."""

from dataclasses import dataclass

from specbench.metrics.results import schema_of

LATENCY, LATENCY_SAMPLES = "latency.parquet", "latency_samples.parquet"
AGREEMENT, DIFFERENCES = "agreement.parquet", "differences.parquet"


@dataclass(frozen=True, kw_only=True)
class LatencyRow:
    """One case of one verifier. What follows ``copy_bandwidth`` is None in a case that was skipped."""

    case: int
    variant: str  # in what it differs from the run's base case, the batch size aside
    verifier: str
    rule: str
    device: str
    comparable: bool  # false where a kernel ran through an interpreter
    batch_size: int
    vocabulary: int
    gamma: int
    dtype: str
    sampler: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    draft_probabilities: bool
    cutoffs_known: bool  # the search for the cutoffs is not in the time
    skipped: str | None = None  # why it was not timed
    flush: str
    empty_graph_us: float | None  # replaying a graph without work; none on a CPU
    copy_bandwidth: float  # bytes a second, read and written

    # What was timed: graph replays where ``graph``, else calls
    graph: bool | None = None
    why_no_graph: str | None = None
    rounds: int | None = None
    replays: int | None = None  # of all rounds
    median_us: float | None = None
    median_us_low: float | None = None
    median_us_high: float | None = None
    q05_us: float | None = None
    q25_us: float | None = None
    q75_us: float | None = None
    q95_us: float | None = None
    eager_us: float | None = None  # median of single calls by the wall clock, the host's part included
    eager_q25_us: float | None = None
    eager_q75_us: float | None = None
    floor_bytes: float | None = None  # mean over the rounds, which differ
    floor_us: float | None = None
    ratio: float | None = None  # median / floor
    ratio_low: float | None = None
    ratio_high: float | None = None

    # Its check
    acceptance_rate: float | None = None  # accepted / drafted, with those behind a rejection
    token_acceptance: float | None = None  # accepted / (accepted + rejected)
    checked: int | None = None  # requests
    rounding: int | None = None  # of these, how many differ from the rule's twin by rounding

    # Its sampler, if that penalises or bans, and the time on the same rows with nothing left to penalise or ban
    shaping: str | None = None  # the parameters, as JSON
    context: int | None = None  # tokens of each text
    plain_us: float | None = None  # median
    plain_us_low: float | None = None
    plain_us_high: float | None = None
    times_plain: float | None = None  # median / plain median
    times_plain_low: float | None = None
    times_plain_high: float | None = None


@dataclass(frozen=True)
class LatencySample:
    case: int
    round: int
    microseconds: float
    plain_microseconds: float | None = None  # with nothing left to penalise or ban; None where nothing is


@dataclass(frozen=True, kw_only=True)
class AgreementRow:
    """A verifier held against another one on synthetic logits. ``twin`` is the other's class.

    ``rounding``, ``wrong``, ``tolerance`` and ``largest_rounding`` are None if the rule has no formulas that could
    explain a difference.
    """

    verifier: str
    rule: str
    twin: str
    vocabulary: int
    batch_size: int
    gamma: int
    dtype: str
    logits: int  # batches of logits, each drawn from many times
    verifications: int  # of one request
    draws: int  # decisions on drafted tokens, and emitted tokens
    acceptance_rate: float | None
    differences: int  # verifications whose tokens differ
    rounding: int | None
    wrong: int | None
    tolerance: float | None
    largest_rounding: float | None  # the largest error that explains a difference
    share: float  # differences / draws
    share_low: float  # 95%, given the batches of logits, from each of which draws are independent
    share_high: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class DifferenceRow:
    """A verification whose tokens differ; its place by batch of logits, step and request."""

    logits: int
    step: int
    request: int
    twin_accepted: int
    twin_emitted: int
    accepted: int
    emitted: int
    excess: float | None  # the error of p and q that it needs (rules/agreement.py)
    rounding: bool | None


LATENCY_SCHEMA = schema_of(LatencyRow)
AGREEMENT_SCHEMA = schema_of(AgreementRow)
