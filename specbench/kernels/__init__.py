"""Triton kernels, one operation a file; each names the plain PyTorch code that it must agree with, its twin."""
