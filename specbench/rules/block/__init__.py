"""The block rule: accepts a whole prefix of the draft at once, on average at least as long as the token rule's.

Sun et al., "Block verification accelerates speculative decoding" (arXiv 2403.10444). With rho_i = p(x_i) / q(x_i) for
the drafted tokens x_1..x_g of a block:

    pi_0 = 1,  pi_i = min(1, pi_(i-1) rho_i)
    S_i  = sum_x max(pi_i p(x | x_1..x_i) - q(x | x_1..x_i), 0)
    h_i  = S_i / (S_i + 1 - pi_i)  for i < g  (1 where that is 0/0),  h_g = pi_g
    tau  = the largest i with u_i < h_i  (0 where there is none; a rejected i does not end the search)

A target row that bans every token is no distribution, and no token can follow there. The block ends before it: if i
tokens stand before that row, h_i = pi_i as at i = g.

Then tau tokens are accepted, and the next is drawn from max(pi_tau p - q, 0), or from p where tau = g.

**Survival**: pi_i / R_i = min(1, min_(j <= i) 1 / R_j). P(tau >= i | drafted x_1..i) = pi_i whatever gamma is, and
log pi is log R reflected at 0, whence the minimum.

**Byte floor**: p and q of each drafted row are read again (2 s V), since every h_i needs the residual mass S_i, and S_i
needs both normalisers. The residual that is drawn from is one of these. With a one-hot q, S_i is pi_i (1 - p(x)), and
only the row that is drawn from is read again (s V).
"""

from specbench.rules.info import RuleInfo, SeriesLook, register

BLOCK = register(
    RuleInfo(
        name="block",
        title="block rule",
        papers=("sun2025block",),
        guarantee="lossless",
        token_cost=lambda log_rho: log_rho,
        rows_again=lambda drafted, rejected, one_hot: rejected if one_hot else 2 * drafted,
        formulas="specbench.rules.block.formulas",
        verifiers={"block": SeriesLook("green", "D"), "block_fused": SeriesLook("purple", "v")},
        timing_baseline="block_fused",
    )
)
