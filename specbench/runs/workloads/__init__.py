"""Prompts: from this package, from a file, or from the folder of a data set."""

from specbench.runs.workloads.loading import EMBEDDED, Workload, load_prompts, load_workload
from specbench.runs.workloads.prompts import Message, Prompt

__all__ = ["EMBEDDED", "Message", "Prompt", "Workload", "load_prompts", "load_workload"]
