"""Figures, for the paper and for W&B alike. Drawing only: every number comes from the rows, metrics or theory."""
