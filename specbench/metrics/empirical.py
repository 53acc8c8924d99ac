"""Empirical against exact distribution: the distance seen, and the distance that sampling noise alone would give."""

import numpy as np

SIMULATIONS = 1000
CHECK = ("check_tv", "check_tv_noise", "check_tv_noise_q99", "check_p_value")


def total_variation(counts: np.ndarray, probs: np.ndarray) -> np.ndarray | np.floating:
    """TV of counts [..., V] from probs [..., V]."""
    return 0.5 * np.abs(counts / counts.sum(axis=-1, keepdims=True) - probs).sum(axis=-1)


def distance_check(counts: np.ndarray, probs: np.ndarray, seed: int = 0) -> dict[str, float] | dict[str, None]:
    """Compares counts [P, V] of P prefixes with exact probabilities [P, V]; distances are means over prefixes.

    A tail of tokens too rare to be seen is pooled into one cell a prefix, which only lowers both distances alike.
    A prefix that has no other cell says nothing and is left out.

    Returns:
        Columns of RunRow: the distance; its mean and 99% quantile for draws from the exact distribution; and the share
        of these simulated distances that are at least as large, (1 + count) / (1 + simulations). None if every prefix
        is left out.
    """
    rng = np.random.default_rng(seed)
    observed, simulated = [], []
    for row_counts, row_probs in zip(counts, probs, strict=True):
        draws = int(row_counts.sum())
        cells, exact = pooled(row_counts, row_probs, least=1 / draws)
        if len(cells) == 1:
            continue
        observed.append(total_variation(cells, exact))
        simulated.append(total_variation(rng.multinomial(draws, exact, size=SIMULATIONS), exact))
    if not observed:
        return dict.fromkeys(CHECK)
    tv, noise = float(np.mean(observed)), np.mean(simulated, axis=0)
    beyond = int((noise >= tv - 1e-12).sum())
    p_value = (1 + beyond) / (1 + SIMULATIONS)
    return dict(zip(CHECK, (tv, float(noise.mean()), float(np.quantile(noise, 0.99)), p_value), strict=True))


def pooled(counts: np.ndarray, probs: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
    """Cells of probability at least ``least``, and one more that holds all others; tokens of probability 0 stay apart.

    A token of probability 0 that was drawn keeps a cell of its own (probability 0), so that it always shows.
    """
    own = (probs >= least) | ((probs == 0) & (counts > 0))
    rest_counts, rest_probs = counts[~own].sum(), probs[~own].sum()
    cells = np.append(counts[own], rest_counts).astype(float)
    exact = np.append(probs[own], rest_probs)
    return cells, exact / exact.sum()
