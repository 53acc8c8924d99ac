"""``pair.vocabularies=different``: pairs whose tokenizers differ.

Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous Vocabularies",
arXiv 2502.05202. Its token-level intersection is intersection.py, its string-level exact match strings.py
(``drafter=strings``). spelling.py has tokens as bytes, translation.py what two vocabularies share. This module provides
the hook ``different_vocabularies`` of specbench/core/extensions.py.
"""

from typing import Any

from specbench.extras.vocabularies.intersection import IntersectionModel as cached_draft
from specbench.extras.vocabularies.spelling import Spelling
from specbench.extras.vocabularies.translation import Translation

__all__ = ["Translation", "cached_draft", "translation"]


def translation(target: tuple[Any, int], draft: tuple[Any, int]) -> Translation:
    """Returns what two vocabularies share. Each is a tokenizer of transformers and its number of ids."""
    return Translation(Spelling(*target), Spelling(*draft))
