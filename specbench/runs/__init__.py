"""Sweeps and their jobs: the plan on disk, what became of each job, launching, resuming, and what is said of it all.

All reports of a sweep, live and later, are derived from its folder: ``plan.json`` lists the jobs, and each
job's folder has ``job.json`` and, once it is done, the job's rows. What composes, checks and plans jobs imports neither
PyTorch nor pandas, so that a mistyped command is answered at once.
"""
