"""Do two models speak of the same tokens? Compared before a run, since a shifted id would only show as bad text."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Bool
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from specbench.core.errors import ModelError
from specbench.core.machine.files import Origin, shown

SHOWN = 5
MOST_PADDING = 2  # outputs for each id; the widest paddings known add a tenth


@runtime_checkable
class SharedTokens(Protocol):
    """What the vocabularies of a target and of a draft share; see the hook in specbench/core/extensions.py."""

    @property
    def shared(self) -> Bool[Tensor, " V"]:
        """Returns for each token of the target whether the draft has it."""
        ...

    def words(self) -> str:
        """Returns what is shared as a sentence for the console."""
        ...


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest id, added tokens included."""
    return max(tokenizer.get_vocab().values()) + 1


def differences(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> list[str]:
    """What differs between two vocabularies, in words; empty where they agree."""
    lines = []
    if vocabulary_size(target) != vocabulary_size(draft):
        lines.append(f"sizes: target {vocabulary_size(target)}, draft {vocabulary_size(draft)}")
    of_target, of_draft = ({i: t for t, i in tok.get_vocab().items()} for tok in (target, draft))
    shared = min(vocabulary_size(target), vocabulary_size(draft))
    ids = sorted(i for i in of_target.keys() | of_draft.keys() if i < shared)
    other = [i for i in ids if of_target.get(i) != of_draft.get(i)]
    if other:
        first = ", ".join(f"id {i}: {shown(of_target.get(i))} / {shown(of_draft.get(i))}" for i in other[:SHOWN])
        lines.append(f"{len(other)} ids stand for different tokens (target / draft), the first: {first}")
    for name in ("bos_token_id", "eos_token_id"):
        if getattr(target, name) != getattr(draft, name):
            lines.append(f"{name}: target {getattr(target, name)}, draft {getattr(draft, name)}")
    return lines


def check_same_vocabulary(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> None:
    """Raises ModelError that lists the differences and the remedy."""
    problems = differences(target, draft)
    if problems:
        raise ModelError(
            "pair.target and pair.draft have different vocabularies: "
            + "; ".join(problems)
            + ". Speculative decoding compares probabilities id by id, so choose a draft of the target's family, made "
            "with the same tokenizer, or use pair.vocabularies=different, which drafts from what both share."
        )


def check_output_width(source: Origin, width: int, vocabulary: int) -> None:
    """Raises ModelError if outputs are not those of the tokenizer's ids; a few more are padding and fine."""
    if width < vocabulary:
        problem = f"the model has {width} outputs for a tokenizer of {vocabulary} ids"
    elif width > MOST_PADDING * vocabulary:
        problem = (
            f"the model has {width} outputs, and its tokenizer has {vocabulary} ids, too few for the rest to be padding"
        )
    else:
        return
    remedy = "The folder mixes files of two models; take tokenizer and weights from the same release."
    raise source.model_error(problem, remedy)
