"""The Python API: what ``import specbench`` gives, one group of functions a file."""
