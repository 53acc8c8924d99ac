"""What came of the experiments: rows to tables and figures; no models. ``python -m specbench.analysis.X [RUN_DIR]``."""
