"""Every published number, computed from the step log and the timings, each with its definition."""
