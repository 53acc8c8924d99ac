"""What came of the experiments: rows to tables and figures, no model. ``python -m specbench.analysis.X [RUN_DIR]``."""
