"""One step log, every definition: what others would have called the same numbers, and where they wrote it down.

Signs as in ratios.py: d drafted, a accepted, e emitted tokens of a step; N steps. A formula is one of ratios.py, or of
request_latency.py. Each definition was read in its owner's source: ``source`` is the repository, path, function and the
commit (or version) that was read, or the section of the paper; where only a quotation or nothing could be read, it says
so. ``differs`` is what the owner counts and this log does not, or the other way round. Three differences hold for all
engines:

- they emit a first token from the prompt's own forward pass; here that pass is part of the first step, and no token
  is outside of the log. Where a definition divides the length of the text by steps, ``differs`` says which side has it;
- vLLM V1 limits drafts by the model's length, not by max_tokens, and SGLang counts a full draft in every step; here a
  request's last drafts are shorter (d < gamma);
- if drafts are trees, gamma stands for the number of nodes there. Here gamma is the depth, and d counts the nodes
  (ratios.py): a rate by drafted tokens is low for a tree, and one by position is not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd

from specbench.metrics.ratios import StepLog, ratio
from specbench.metrics.request_latency import LATENCIES, RequestTimes, statistics


@dataclass(frozen=True)
class Metric:
    """A definition: its name here, whose it is, its formula, where it is written, what differs."""

    name: str
    owner: str
    formula: str
    source: str
    differs: str = ""


SPECBENCH = "specbench/metrics/ratios.py"
LEVIATHAN = "arXiv 2211.17192"
SGLANG_LOG = (
    "sgl-project/sglang, python/sglang/srt/managers/scheduler_components/metrics_reporter.py, report_decode_stats "
    "(c9cbe8f)"
)
SGLANG_META = (
    "sgl-project/sglang, python/sglang/srt/managers/tokenizer_manager_components/spec_decoding_meta.py, "
    "fill_spec_decoding_meta (9155cf0), earlier TokenizerManager._calculate_spec_decoding_metrics"
)
VLLM = "vllm-project/vllm, vllm/v1/spec_decode/metrics.py, SpecDecodingLogging.log (ee4ceaa)"
VLLM_COUNTS = (
    "the scheduler counts a before it looks for a stop (vllm/v1/core/sched/scheduler.py, update_from_output, b4622cf), "
    "as this log does; it takes drafts that a grammar forbids out of d"
)
AIPERF = (
    "ai-dynamo/aiperf, docs/tutorials/spec-decode-metrics.md (08c43be) and docs/reference/spec-decode-acceptance.md "
    "(0786f0c)"
)
TRTLLM = "NVIDIA/TensorRT-LLM"
TRTLLM_BENCH = f"{TRTLLM}, tensorrt_llm/bench/dataclasses/reporting.py, generate_statistics_summary (0249976)"
SPECDEC_BENCH = (
    "NVIDIA/Model-Optimizer, examples/specdec_bench/specdec_bench/metrics/acceptance_rate.py, AcceptanceRate (a2fbac7)"
)
CHUNKS = (
    "steps are chunks of a stream, the prompt's token one of them, and an end-of-text token may be taken out; rates by "
    "position are keyed by i + 1, without lengths never seen"
)

METRICS: tuple[Metric, ...] = (
    # Lengths
    Metric("acceptance length", "specbench; SGLang, log line 'accept len'", "(Σa + N) / N", SGLANG_LOG,
           "pooled over a log interval; a as verified, end of text or not, as here (batch_result_processor.py, "
           "_resolve_spec_v2_tokens, df80246)"),
    Metric("block efficiency", "Leviathan et al., mean of 'generated tokens'", "(Σa + N) / N",
           f"{LEVIATHAN}, section 3.1, tokens of a run of algorithm 1; the name as in 2310.15141 and 2403.10444, "
           "from memory",
           "the paper has its expectation (equation 1), for d = gamma in every step"),
    Metric("mean accepted tokens", "Spec-Bench, '#Mean accepted tokens'", "Σe / N",
           "hemingkx/Spec-Bench, evaluation/speed.py and eval.py, counted in model/sps/decoding.py (fd2c1cd)",
           "steps of all requests and turns pooled; SpS, EAGLE, EAGLE-2 and PLD cut at the end of the text as "
           "here, EAGLE-3, Medusa, Hydra and REST do not"),
    Metric("accepted tokens a step", "specbench", "Σa / N", SPECBENCH),
    Metric("accept length", "SpecForge, benchmarks: completion_tokens / spec_verify_ct", "Σe / N",
           "sgl-project/SpecForge, benchmarks/benchmarker/utils.py, compute_metrics (a6b6b02)",
           "completion_tokens has the prompt's token too, one a request, and no step for it"),
    Metric("accept length, mean of requests", "SGLang, meta_info spec_accept_length; SpecForge's average of it",
           "mean over requests of Σe / N",
           f"{SGLANG_META}; sgl-project/SpecForge, specforge/benchmarks/sglang.py, _run_sglang (a6b6b02)",
           "completion_tokens has the prompt's token too, one a request, and no step for it"),
    Metric("decoded tokens an iteration",
           "NVIDIA TensorRT-LLM, avgDecodedTokensPerIter; NVIDIA Model-Optimizer, specdec_bench Average_AL",
           "mean over requests of Σe / N",
           f"{TRTLLM}, cpp/include/tensorrt_llm/batch_manager/llmRequest.h, getAvgDecodedTokensPerIter of a "
           f"request (00e9b8a); {SPECDEC_BENCH}",
           f"the prompt's iteration and its token are on both sides, (Σe + 1) / (N + 1); in specdec_bench {CHUNKS}"),
    Metric("mean acceptance length", "vLLM V1, 'Mean acceptance length'; NVIDIA TensorRT-LLM, acceptanceLength; "
           "NVIDIA AIPerf, token-weighted acceptance length", "1 + Σa / #{d>0}",
           f"{VLLM}; {TRTLLM}, cpp/include/tensorrt_llm/executor/types.h, SpecDecodingStats (a98a906); {AIPERF}",
           f"{VLLM_COUNTS}; TensorRT-LLM's is of one iteration"),
    Metric("acceptance length, mean of requests", "NVIDIA AIPerf, acceptance length (of vLLM's per-request metrics)",
           "mean over requests of 1 + Σa / #{d>0}",
           f"{AIPERF}; vllm-project/vllm, docs/features/speculative_decoding/acceptance_metrics.md (02cf515)",
           "whether a request that drafted nothing counts as 1 there was not traced; here it is left out"),
    Metric("acceptance length, full drafts", "specbench", "1 + mean of a where d = gamma", SPECBENCH),
    # Rates
    Metric("acceptance rate", "specbench; vLLM V1, 'Avg Draft acceptance rate'; NVIDIA AIPerf, overall draft "
           "acceptance rate", "Σa / Σd", f"{VLLM}; {AIPERF}", VLLM_COUNTS),
    Metric("acceptance rate, mean of requests", "NVIDIA AIPerf, draft acceptance rate", "mean over requests of Σa / Σd",
           AIPERF, "requests that drafted nothing are left out here"),
    Metric("accept rate", "SGLang, log line 'accept rate' since PR 23530, and meta_info spec_accept_rate",
           "Σa / (N gamma)", f"{SGLANG_LOG}; {SGLANG_META}",
           "gamma is speculative_num_draft_tokens - 1, of a request in meta_info; every step drafts"),
    Metric("accept rate, first form", "SGLang, log line 'accept rate' before PR 23530", "(Σa + N) / (N (gamma + 1))",
           "sgl-project/sglang, python/sglang/srt/observability/scheduler_metrics_mixin.py, log_decode_stats (44cedc2)",
           "meta_info never had it; every step drafts"),
    Metric("draft acceptance rate, trtllm-bench", "NVIDIA TensorRT-LLM, trtllm-bench",
           "mean over requests of (Σe - N) / (N gamma)", TRTLLM_BENCH,
           "N is decoding_iter + 1 there, the text has the prompt's token; which iterations count was not traced"),
    Metric("tokens accepted over K + 1", "Chen et al., figure 1", "(Σa + N) / (N (gamma + 1))",
           "arXiv 2302.01318, figure 1, middle: its caption was read in a quotation, not in the paper",
           "the caption leaves open whether the last token is accepted too; counted here, as K + 1 and an axis up to 1 "
           "suggest"),
    Metric("system efficiency", "vLLM V0", "(Σa + #{d>0}) / (#{d>0} (gamma + 1))",
           "vllm-project/vllm, vllm/spec_decode/metrics.py, AsyncMetricsCollector (027b485)",
           "drafts there have gamma tokens or none; versions that dropped the bonus token emitted one less. V0's "
           "'draft acceptance rate' counted tokens accepted behind a rejection, which no log here holds"),
    Metric("accepted per verified", "NVIDIA AIPerf", "mean over requests of (Σa + #{d>0}) / (Σd + #{d>0})", AIPERF),
    Metric("alpha, tested tokens", "specbench's estimate of Leviathan et al.'s alpha = E(beta)", "Σa / Σ(a + [a<d])",
           f"{LEVIATHAN}, definition 3.1",
           "the paper measures alpha as the mean of sum min(p, q) over text of the target (section 4.2): the column "
           "overlap of results, and no count"),
    Metric("alpha, implied", "Leviathan et al., equation 1 solved for alpha",
           "(1 - alpha^(gamma+1)) / (1 - alpha) = 1 + mean of a where d = gamma",
           f"{LEVIATHAN}, section 3.1, equation 1", "the equation supposes that betas are independent and alike"),
    Metric("drafts accepted whole", "transformers: what makes num_assistant_tokens grow (heuristic schedule)",
           "#{e=d+1, d>0} / #{d>0}",
           "transformers 5.23.0, generation/candidate_generator.py, update_candidate_strategy, and "
           "generation/utils.py, _assisted_decoding",
           "transformers tests each draft and publishes no share; a draft with the end of the text in it is not "
           "whole, one of no tokens is; the schedule is 'constant' unless asked for"),
)  # fmt: skip

POSITION_METRICS: tuple[Metric, ...] = (
    Metric("joint", "specbench", "#{a>=i} / #{d>=i}", SPECBENCH),
    Metric("joint, all drafts", "vLLM V1, 'Per-position acceptance rate'", "#{a>=i} / #{d>0}", VLLM,
           VLLM_COUNTS),
    Metric("joint, all steps", "NVIDIA Model-Optimizer, specdec_bench Joint_Acceptance_Rate", "#{e>i} / N",
           SPECDEC_BENCH, CHUNKS),
    Metric("conditional", "specbench: Leviathan et al.'s beta, by position", "#{a>=i} / #{d>=i, a>=i-1}",
           f"{LEVIATHAN}, definition 3.1", "the paper has beta by prefix, not by position"),
    Metric("conditional, all steps", "NVIDIA Model-Optimizer, specdec_bench Conditional_Acceptance_Rate",
           "#{e>i} / #{e>=i}", SPECDEC_BENCH, CHUNKS),
)  # fmt: skip


VLLM_BENCH = "vllm-project/vllm, vllm/benchmarks/serve.py, calculate_metrics (009e6d4)"
LATENCY_METRICS: dict[str, Metric] = {
    "ttft_ms": Metric("time to first token", "vLLM, bench serve", "first token - start", VLLM_BENCH,
                      "the clock starts when the decoder admits the request; the first token comes with the first "
                      "block, so that the first draft counts; median over rounds"),
    "tpot_ms": Metric("time per output token", "vLLM, bench serve", "(end - first token) / (tokens - 1)", VLLM_BENCH,
                      "the other tokens of the first block count as tokens and take no time; median over rounds"),
}  # fmt: skip


def latency_columns(times: RequestTimes) -> dict[str, float | None]:
    """Returns mean, p50 and p99 over requests of each of LATENCY_METRICS, such as "p99_ttft_ms"."""
    return {
        f"{statistic}_{name}": value
        for name, metric in LATENCY_METRICS.items()
        for statistic, value in statistics(LATENCIES[metric.formula](times)).items()
    }


def all_metrics(steps: pd.DataFrame, gamma: int) -> pd.Series:
    """Every metric of METRICS for one run, by name; NaN where undefined."""
    log = StepLog.of(steps, gamma)
    return pd.Series({metric.name: ratio(log, metric.formula) for metric in METRICS}, dtype=float)


def opposite_rankings(runs: Sequence[tuple[str, pd.Series]]) -> list[tuple[str, ...]]:
    """Pairs of runs that two metrics rank differently: (first, second, metric of one order, metric of the other).

    Args:
        runs: name and all_metrics of each.
    """
    pairs = []
    for (first, a), (second, b) in combinations(runs, 2):
        difference = b - a
        sign = np.where(difference.abs() > 1e-9 * a.abs(), np.sign(difference), 0)  # else a tie but for rounding
        higher, lower = a.index[sign > 0], a.index[sign < 0]
        pairs += [(first, second, str(up), str(down)) for up in higher for down in lower]
    return pairs
