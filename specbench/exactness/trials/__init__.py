"""Calls drawn from the input distribution D, put before a verifier and compared with the rule that it names."""
