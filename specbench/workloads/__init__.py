"""Prompts: JSON lines, from this package or from a file."""

from specbench.workloads.prompts import Prompt, load_prompts

__all__ = ["Prompt", "load_prompts"]
