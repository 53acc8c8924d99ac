"""Tests, bets and confidence bounds, of counts and of calls; they know no verifier."""
