"""Verifiers with one real bug each, to show which tests see it. Grouped by where the bug is; none is for use.

Every class names the thread or file its bug is taken from, and differs from the sound rule in the bug alone. Where none
is known the docstring says "a mutant", and where a bug is imitated by other means than in its source, it says how. What
no verifier can express (wrong metrics, a stop token that is not the end) is not here.
"""
