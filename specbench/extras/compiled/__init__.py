"""``engine=compiled`` on a GPU: both models go through torch.compile, around products of few rows of our own.

The core knows of it only that a CachedModel has a ``fixed_forward``, in the place of what ``placed`` returns. On a CPU
decoding/engines/compiled_cpu.py takes the steps.
"""
