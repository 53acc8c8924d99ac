"""Flawed verifiers with one real bug each, by the place of the bug."""
