"""One forward pass of a causal language model over a ragged cache: its attention, positions and logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import PreTrainedConfig, PreTrainedModel

from specbench.core import trees
from specbench.models import attention, rope
from specbench.models.cache import RaggedCache
from specbench.models.plain_attention import places, seen

# Without cuDNN's attention, which builds a new plan for every length of the keys, that is, at every step.
_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

# Names a hidden state: "last" is what the output layer reads; k is what leaves layer k, from 1; 0 is the embeddings.
Feature = Literal["last"] | int
Features = dict[Feature, Shaped[Tensor, "B fed hidden"]]


@dataclass(frozen=True)
class ModelOutput:
    """What a forward pass returns.

    Attributes:
        logits: after each token that was fed, without those of padding ids.
        features: the requested hidden states of each token that was fed, by name, [B, n, hidden size].
    """

    logits: Float[Tensor, "B n V"]
    features: Features


def context_length(config: PreTrainedConfig) -> int:
    """Returns the longest sequence that a model can hold; 2**31 if its configuration names none.

    Sliding windows do not bound it (models/attention.py); rotary positions that change with the length do (rope.py).
    """
    longest = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min([2**31, *rope.original_contexts(config), *([] if longest is None else [int(longest)])])


def sliding_window(config: PreTrainedConfig) -> int | None:
    """The sliding window that a configuration gives to some of its layers, or to all if it names no kinds of layers."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    used = getattr(text, "use_sliding_window", True) and (kinds is None or "sliding_attention" in kinds)
    return getattr(text, "sliding_window", None) if used else None


class CausalModel:
    """A model, with logits of the ids that its tokenizer knows.

    Args:
        model: a decoder with attention in every layer, in eval mode. It runs the attention of models/attention.py from
            here on, if it can.
        vocab_size: ids that the tokenizer knows. A wider output layer is cut, so that no padding id is emitted.
        dtype: of the logits; None is the model's.

    Attributes:
        fixed_forward: what passes of fixed shapes call in place of ``placed(model)``, such as its compiled form; None
            for that itself.
        context: the longest sequence that it can hold.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int, dtype: torch.dtype | None):
        self.model, self.vocab_size, self._dtype = model, vocab_size, dtype
        self.device = model.device
        self.context = context_length(model.config)
        self._window = sliding_window(model.config)
        self._takes_places = attention.install(model)
        rope.hold(model)
        self.fixed_forward: Callable[..., Any] | None = None
        self._placed = self.placed(model)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype or self.model.dtype

    def placed(self, model: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that tells a model where its tokens stand: with it torch.compile makes fewer kernels."""
        takes_places, last_place = self._takes_places, self.context - 1

        def forward(
            lengths: Tensor, positions: Tensor, ancestors: Tensor | None, past_key_values: RaggedCache, **inputs: Any
        ) -> Any:
            at = places(lengths, positions, ancestors)
            mask = at if takes_places else seen(at, past_key_values.visible, None)[:, None]
            # Padding may lie beyond the context, where learned position embeddings have no row.
            where = {"attention_mask": mask, "position_ids": positions.clamp(max=last_place)}
            return model(past_key_values=past_key_values, use_cache=True, **where, **inputs)

        return forward

    def _forward(
        self,
        cache: RaggedCache,
        token_ids: Int64[Tensor, "B n"],
        lengths: Int64[Tensor, " B"],
        positions: Int64[Tensor, "B n"],
        features: Sequence[Feature],
        ancestors: Bool[Tensor, "B n k"] | None = None,
        fixed: bool = False,
        last: bool = False,
    ) -> ModelOutput:
        """One pass over new tokens; ``last`` computes the logits of the last token alone."""
        if ancestors is not None:
            trees.check_window(self._window, ancestors.shape[2])  # of the whole tree, whichever level is fed
            lengths = lengths + token_ids.shape[1] - ancestors.shape[2]  # where the tree begins
            positions = lengths[:, None] + trees.depths(ancestors) - 1
        # All layers are requested: only then does transformers count from the embeddings in every supported release. In
        # a list of layers it does since 5.23.
        options = {"output_hidden_states": True} if features else {}
        with nullcontext() if self.device.type == "cpu" else sdpa_kernel(_ATTENTION):
            output = ((self.fixed_forward if fixed else None) or self._placed)(
                lengths, positions, ancestors, cache, input_ids=token_ids, logits_to_keep=1 if last else 0, **options
            )
        hidden: Features = {name: output.hidden_states[-1 if name == "last" else name] for name in features}
        return ModelOutput(self._without_padding(output.logits), hidden)

    def _without_padding(self, logits: Float[Tensor, "*n outputs"]) -> Float[Tensor, "*n V"]:
        logits = logits[..., : self.vocab_size]
        return logits if self._dtype is None else logits.to(self._dtype)

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> Float[Tensor, "n V"]:
        """Returns the logits after every token of one sequence, in one pass without a cache; a reference for tests."""
        ids = torch.tensor([list(token_ids)], device=self.device)
        return self._without_padding(self.model(input_ids=ids, use_cache=False).logits[0])
