"""Pairs whose tokenizers differ: tokens as bytes, what two vocabularies share, and a draft that speaks target ids.

Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies",
arXiv 2502.05202. Its token-level intersection is intersection.py, its string-level exact match drafters/strings.py.
"""
