"""specbench: a laboratory for speculative decoding. Start at types.py, then verifiers/naive.py and decoding.py."""
