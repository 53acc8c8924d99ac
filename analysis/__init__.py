"""What came of the experiments: rows to tables and figures, never a model. ``python -m specbench.analysis.X [RUN_DIR]``."""
