"""Protocols: what a run measures. One a file, chosen by ``protocol=<yaml name>``."""

from specbench.protocols.base import Outcome, RunContext

__all__ = ["Outcome", "RunContext"]
