"""Can these be log-probabilities of the target's own texts? A test that right traces pass.

Where a token x is sampled from p, the expectation of q(x) / p(x) is the mass that q has where p has any: 1, or less
where the sampler truncates, whatever came before. So the running product of 1 + lambda (q/p - 1), 0 < lambda < 1, is a
nonnegative supermartingale, and so is the mean of several: by Ville's inequality it comes above 1 / alpha with
probability alpha at most, whatever the texts' dependence and the ratios' tail (a test by betting; Waudby-Smith and
Ramdas, "Estimating means of bounded random variables by betting", JRSS B 2024).

It sees a mean above 1: columns that were swapped, rows of one column shifted against the other's, texts that were
sampled hotter than they were scored. It does not look below 1, where right traces often are: tokens that the draft
proposes and the target hardly ever samples make up much of the mean, and are missing from most texts. At the 2234
contexts that protocol=record sampler.temperature=1 batch_size=36 workload.limit=36 max_new_tokens=64 leaves of the
embedded pair, tokens were drawn anew from the target 400 times: the mean's t over prompts was below -3.9 in 5% of these
right traces, and -7.9 once, where a bootstrap at 1e-4 would warn. Texts that were sampled COOLER than they were scored,
as with an engine's prompt log-probabilities, therefore go unseen here; imports.py refuses them by their form.
"""

import numpy as np
from scipy.special import logsumexp

from specbench.replay.trace import Trace

FALSE_ALARM = 1e-4
BETS = 0.9 * 0.5 ** np.arange(8)


def ratios(trace: Trace) -> np.ndarray:
    """q / p of every token; 0 where the draft never proposes it."""
    return np.exp(trace.columns["log_q"].astype(float) - trace.columns["log_p"].astype(float))


def log_evidence(trace: Trace) -> float:
    """Natural logarithm of the product at the end of the trace; above log(1 / alpha) with probability alpha at most."""
    above = ratios(trace) - 1
    return float(logsumexp([np.log1p(bet * above).sum() for bet in BETS], b=1 / len(BETS)))


def warning(trace: Trace) -> str | None:
    """What is wrong with the trace, if anything; a right one has a warning with probability 1e-4 at most."""
    if log_evidence(trace) <= -np.log(FALSE_ALARM):
        return None
    return (
        f"The mean of q/p over the texts' tokens is {ratios(trace).mean():.3g}, where texts that the target sampled "
        f"have 1 (less where the sampler truncates); chance does this in at most {FALSE_ALARM:g} of right traces. Are "
        "log_p and log_q swapped, the rows of one shifted by a token, or the texts scored by another sampler?"
    )
