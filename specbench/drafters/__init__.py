"""Drafters: what proposes tokens. One method a file, chosen by ``drafter=<yaml name>``."""

from specbench.drafters.drafter import Drafter, Observation, draft_name

__all__ = ["Drafter", "Observation", "draft_name"]
