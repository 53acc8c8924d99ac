"""What came of the experiments: rows to tables and figures, never a model. ``python -m analysis.X [RUN_DIR]``."""
