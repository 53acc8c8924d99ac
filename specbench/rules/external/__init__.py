"""Adapters of other projects' verifiers: baselines of speed, and subjects of exactness tests."""
