"""Weights & Biases, offline unless asked: what jobs and sweeps give it, and what becomes of errors.

A job's run is made of the job's folder: its row is the summary, its tables are tables, its figures are images, its
files an artifact. So a job whose process was killed can be reported by any process that reads its folder.

W&B runs in a process of its own (wandb_process.py). Its settings, signal handlers and threads never touch the process
that measures, or a user's own; it may hang or crash; and while something is timed nothing of it runs.
"""

from specbench.reports.tracking.jobs import JobRun, is_tracked, tags_of
from specbench.reports.tracking.reports import write_report
from specbench.reports.tracking.settings import WandbWorkspace, check_settings
from specbench.reports.tracking.sweeps import log_sweep

__all__ = ["JobRun", "WandbWorkspace", "check_settings", "is_tracked", "log_sweep", "tags_of", "write_report"]
