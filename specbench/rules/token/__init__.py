"""The token rule: accepts each drafted token with probability min(1, p / q), up to the first that is rejected.

Leviathan et al., "Fast inference from transformers via speculative decoding" (arXiv 2211.17192), algorithm 1; Chen et
al., "Accelerating large language model decoding with speculative sampling" (arXiv 2302.01318), algorithm 2. A rejected
token is replaced by a draw from the residual max(p - q, 0). ``naive`` is the rule as the papers write it.

**On trees**: recursive rejection sampling (Miao et al., arXiv 2305.09781; Jeon et al., arXiv 2402.14160; Chen et al.,
arXiv 2402.12374). A rejected candidate leaves the residual to the next one; ``tree_naive`` says why it is lossless.

**Survival**: prod_(j <= i) min(1, 1 / rho_j), since each token is decided on alone.

**Byte floor**: after a rejection, p and q of the rejected row are read (2 s V). The residual needs the normaliser of p
before its first entry can be computed, so p is read a second time. The normaliser of q is known from drafting, and q is
read for the first time. A one-hot q is not read (s V).
"""

import numpy as np

from specbench.rules.info import RuleInfo, SeriesLook, register

TOKEN = register(
    RuleInfo(
        name="token",
        title="token rule",
        papers=("leviathan2023fast", "chen2023accelerating"),
        tree_papers=("miao2024specinfer", "jeon2024recursive", "chen2024sequoia"),
        guarantee="lossless",
        token_cost=lambda log_rho: np.maximum(log_rho, 0.0),
        rows_again=lambda drafted, rejected, one_hot: rejected if one_hot else 2 * rejected,
        formulas="specbench.rules.token.formulas",
        verifiers={
            "masked": SeriesLook("blue", "o"),
            "naive": SeriesLook("vermillion", "s"),
            "fused": SeriesLook("orange", "^"),
        },
        tree_verifiers={"tree": SeriesLook("sky", "P")},
        timing_baseline="fused",
    )
)
