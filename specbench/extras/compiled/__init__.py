"""``engine=compiled`` on a GPU: passes over few tokens by kernels of ours alone, and torch.compile for the others.

The core knows of it only that a CachedModel has a ``fixed_forward``, in the place of what ``placed`` returns. On a CPU
decoding/engines/compiled_cpu.py takes the steps.
"""
