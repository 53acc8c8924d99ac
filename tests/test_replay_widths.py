"""The replay sweep's median of widths counts each setting once."""

from __future__ import annotations

import pandas as pd

from analysis.replay_sweep import widths


def test_the_block_rules_gamma_1_is_not_counted_again():
    points = pd.DataFrame(
        {
            "rule": ["token", "token", "block", "block"],
            "gamma": [1, 4, 1, 4],
            "width_ratio": [1.0, 1.3, 9.0, 1.5],
        }
    )
    assert "is 1.30 times" in widths(points)
    assert "1.00 to 1.50" in widths(points)
    assert "is 5.25 times" in widths(points[points["rule"] == "block"])  # alone, it is no copy
