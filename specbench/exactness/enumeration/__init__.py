"""What code emits for every value of its uniforms, and how likely that is. Thresholds are located; nothing is drawn."""
