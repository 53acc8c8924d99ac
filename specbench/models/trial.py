"""Does the engine run this architecture, and as the model itself would?

The engine gives masks and positions of its own and takes tokens back. Models that ignore them (recurrent layers, biases
in place of positions, attention to both sides) would decode text of another distribution. So every model runs a few
tokens both ways before it is used.
"""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from specbench.errors import ModelError
from specbench.files import Source, reason
from specbench.models.engine import Engine

_LENGTH = 9
_STRIDE = 7919  # a prime, so that the ids are spread over any vocabulary
_REMEDY = "Choose a decoder with full attention in every layer, such as Llama, Qwen3 or SmolLM2."
# Of the logits' spread. Rounding in 16 bits stays below 0.05, a token more or less in sight is above 0.3.
_TOLERANCE = 0.2


def check_engine(model: PreTrainedModel, vocab_size: int, source: Source) -> None:
    """Decodes two short texts in steps, with tokens taken back, and compares with one pass over each.

    Raises:
        ModelError: the engine cannot run the model, gets other logits than one pass does, or NaN.
    """
    engine, asked = Engine(model, vocab_size, source.key), f"{source.key}={source.value}"
    length = min(_LENGTH, engine.context)
    texts = [[(1 + i * _STRIDE + row) % vocab_size for i in range(length)] for row in range(2)]
    try:
        stepped = _in_steps(engine, texts)
        whole = torch.stack([engine.score(text)[-2:] for text in texts]).float()
    except Exception as error:
        raise ModelError(
            f"{asked}: {type(model).__name__} does not run with a cache that takes tokens back "
            f"({type(error).__name__}: {reason(error)}). {_REMEDY}"
        ) from error
    if whole.isnan().any() or stepped.isnan().any():
        raise ModelError(
            f"{asked}: its logits are NaN. The numbers of config.json do not fit the weights, or "
            "they are too large for this dtype: try dtype=float32."
        )
    apart, spread = (stepped - whole).nan_to_num().square().mean().sqrt(), whole.std()
    if apart > _TOLERANCE * spread:
        raise ModelError(
            f"{asked}: {type(model).__name__} gives other logits token by token than in one pass "
            f"(by {float(apart / spread):.2f} of their spread), so that its texts would not be its own. {_REMEDY}"
        )


def _in_steps(engine: Engine, texts: list[list[int]]) -> torch.Tensor:
    """The logits after the last two tokens of each text, [2, 2, V], from requests that are never of the same length."""
    length, device = len(texts[0]), engine.device
    engine.start([texts[0][:3], texts[1][:2]], length + 3)
    engine.extend(torch.tensor([[texts[0][2], 1, 2], [texts[1][1], 3, 0]], device=device), [3, 2])
    engine.truncate([3, 2])
    ends = [length - 3, length - 2]
    logits = engine.extend(torch.tensor([[*texts[0][3:], 0], texts[1][2:]], device=device), ends)
    return torch.stack([logits[row, end - 2 : end] for row, end in enumerate(ends)]).float()
