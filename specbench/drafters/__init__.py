"""Drafters: what proposes tokens. One method a file, chosen by ``drafter=<yaml name>``."""

from specbench.drafters.base import Drafter

__all__ = ["Drafter"]
