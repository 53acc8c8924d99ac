"""What it takes to time verifiers: synthetic cases, the timer, the byte floor, and the check of what was timed."""
