"""Weights & Biases, offline unless asked: what jobs and sweeps give it, and what becomes of errors.

A run is made of a folder, a job's or a sweep's: its row is the summary, its tables are tables, its figures are images,
its files an artifact. So a job whose process was killed can be reported by any process that reads its folder.

W&B runs in a process of its own (wandb_process.py), which reads the folder. Its settings, signal handlers and threads
never touch the process that measures, or a user's own; it may hang or crash; and while something is timed nothing of it
runs.
"""
