"""Verifiers: the rules that accept or reject drafted tokens. One rule a file, chosen by ``verifier=<yaml name>``."""

from specbench.verifiers.base import Verifier

__all__ = ["Verifier"]
