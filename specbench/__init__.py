"""specbench: a laboratory for speculative decoding. Start reading at types.py, then verifiers/naive.py and decoding.py."""
