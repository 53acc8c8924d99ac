"""The typed tables of the protocols latency and agreement; analysis reads them without loading PyTorch."""

from __future__ import annotations

import pyarrow as pa

LATENCY, LATENCY_SAMPLES = "latency.parquet", "latency_samples.parquet"
LATENCY_SCHEMA = pa.schema(
    [
        # The case
        ("case", pa.int64()),
        ("variant", pa.string()),  # in what it differs from the run's base case, the batch size aside
        ("verifier", pa.string()),
        ("rule", pa.string()),
        ("device", pa.string()),
        ("comparable", pa.bool_()),  # false where a kernel ran through an interpreter
        ("batch_size", pa.int64()),
        ("vocabulary", pa.int64()),
        ("gamma", pa.int64()),
        ("dtype", pa.string()),
        ("sampler", pa.string()),
        ("temperature", pa.float64()),
        ("top_k", pa.int64()),
        ("top_p", pa.float64()),
        ("min_p", pa.float64()),
        ("draft_probabilities", pa.bool_()),
        ("cutoffs_known", pa.bool_()),  # the search for the cutoffs is not in the time
        ("skipped", pa.string()),  # why it was not timed; the columns that follow "copy_bandwidth" are then empty
        ("flush", pa.string()),
        ("empty_graph_us", pa.float64()),  # replaying a graph without work; none on a CPU
        ("copy_bandwidth", pa.float64()),  # bytes a second, read and written
        # Its time, of graph replays where ``graph``, else of calls
        ("graph", pa.bool_()),
        ("why_no_graph", pa.string()),
        ("rounds", pa.int64()),
        ("replays", pa.int64()),  # of all rounds
        ("median_us", pa.float64()),
        ("median_us_low", pa.float64()),
        ("median_us_high", pa.float64()),
        ("q05_us", pa.float64()),
        ("q25_us", pa.float64()),
        ("q75_us", pa.float64()),
        ("q95_us", pa.float64()),
        ("eager_us", pa.float64()),  # median of single calls by the wall clock, the host's part included
        ("eager_q25_us", pa.float64()),
        ("eager_q75_us", pa.float64()),
        ("floor_bytes", pa.float64()),  # mean over the rounds, which accept different numbers of tokens
        ("floor_us", pa.float64()),
        ("ratio", pa.float64()),  # median / floor
        ("ratio_low", pa.float64()),
        ("ratio_high", pa.float64()),
        # Its check
        ("acceptance_rate", pa.float64()),  # accepted / drafted, with those behind a rejection
        ("token_acceptance", pa.float64()),  # accepted / (accepted + rejected)
        ("checked", pa.int64()),  # requests
        ("rounding", pa.int64()),  # of these, how many differ from the rule's twin by rounding
    ]
)
LATENCY_SAMPLES_SCHEMA = pa.schema([("case", pa.int64()), ("round", pa.int64()), ("microseconds", pa.float64())])

AGREEMENT, DIFFERENCES = "agreement.parquet", "differences.parquet"
AGREEMENT_SCHEMA = pa.schema(
    [
        ("verifier", pa.string()),
        ("rule", pa.string()),
        ("twin", pa.string()),
        ("vocabulary", pa.int64()),
        ("batch_size", pa.int64()),
        ("gamma", pa.int64()),
        ("dtype", pa.string()),
        ("logits", pa.int64()),  # batches of logits, each drawn from many times
        ("verifications", pa.int64()),  # of one request
        ("draws", pa.int64()),  # decisions on drafted tokens, and emitted tokens
        ("acceptance_rate", pa.float64()),
        ("differences", pa.int64()),  # verifications whose tokens differ
        ("rounding", pa.int64()),
        ("wrong", pa.int64()),
        ("tolerance", pa.float64()),
        ("largest_rounding", pa.float64()),  # the largest error that explains a difference
        ("share", pa.float64()),  # differences / draws
        ("share_low", pa.float64()),
        ("share_high", pa.float64()),
        ("seconds", pa.float64()),
    ]
)
DIFFERENCES_SCHEMA = pa.schema(
    [
        ("logits", pa.int64()),
        ("step", pa.int64()),
        ("request", pa.int64()),
        ("twin_accepted", pa.int64()),
        ("twin_emitted", pa.int64()),
        ("accepted", pa.int64()),
        ("emitted", pa.int64()),
        ("excess", pa.float64()),
        ("rounding", pa.bool_()),
    ]
)
