"""What reports find in a certificate of protocol=judge: its questions, a verdict, and its table of shares."""

OF_TEXTS = "At this temperature, are speculative texts distributed as plain ones?"
OF_CHECKPOINT = "At this temperature, are texts distributed as the checkpoint says?"
OF_GREEDY = "At temperature 0, are speculative texts the same as plain ones?"
REFUTED = "refuted"
SHARES = "judge_checkpoint.parquet"  # how often tokens of a set occur, in texts of each mode
DIFFERENCE = "speculative - plain"  # in the place of a mode, the difference of both
