"""Does a cached model run this architecture, and as the model itself would?

A cached model sets masks and positions of its own and takes tokens back. Models that ignore them (recurrent layers,
biases in place of positions, attention to both sides) would decode text of another distribution. So every model runs a
few tokens both ways before it is used.
"""

import torch
from transformers import PreTrainedModel

from specbench.core.machine.files import Origin, reason
from specbench.models.attention import windows_of_layers
from specbench.models.cached_model import CachedModel
from specbench.models.forward import sliding_window

_LENGTH = 9
_STRIDE = 7919  # a prime, so that the ids are spread over any vocabulary
_REMEDY = "Choose a decoder with attention in every layer, such as Llama, Qwen3 or Gemma 3."
# Of the logits' spread. In float32 rounding is 4e-7 over 60 architectures; attention to both sides is 0.2 and above.
_TOLERANCE = {torch.float64: 0.01, torch.float32: 0.01}
_TOLERANCE_OF_16_BITS = 0.2


def check_runs(model: PreTrainedModel, vocab_size: int, source: Origin) -> None:
    """Decodes two short texts in steps, with tokens taken back, and compares with one pass over each.

    Raises:
        ModelError: the model does not run with our cache, its logits are NaN or differ from those of one pass, or its
            layers do not use its sliding window, if that is longer than these texts.
    """
    cached, name = CachedModel(model, vocab_size, source.key), type(model).__name__
    length = min(_LENGTH, cached.context)
    texts = [[(1 + i * _STRIDE + row) % vocab_size for i in range(length)] for row in range(2)]
    try:
        with windows_of_layers() as windows:
            stepped = _in_steps(cached, texts)
        whole = torch.stack([cached.score(text)[3:] for text in texts]).float()
    except Exception as error:
        problem = f"{name} does not run with a cache that takes tokens back ({type(error).__name__}: {reason(error)})"
        raise source.model_error(problem, _REMEDY) from error
    if whole.isnan().any() or stepped.isnan().any():
        remedy = "The numbers of config.json do not fit the weights, or they are too large for this dtype"
        raise source.model_error("its logits are NaN", f"{remedy}: try dtype=float32.")
    apart, spread = (stepped - whole).nan_to_num().square().mean().sqrt(), whole.std()
    window = sliding_window(model.config)
    if window is not None and window < cached.context and windows <= {None}:
        problem = f"config.json gives layers a sliding window of {window} tokens, and {name} does not pass it"
        raise source.model_error(f"{problem} to its attention, so that they would see further", _REMEDY)
    if apart > _TOLERANCE.get(model.dtype, _TOLERANCE_OF_16_BITS) * spread:
        problem = f"{name} gives other logits token by token than in one pass"
        problem += f" (by {float(apart / spread):.2f} of their spread), so that its texts would not be its own"
        raise source.model_error(problem, _REMEDY)


def _in_steps(cached: CachedModel, texts: list[list[int]]) -> torch.Tensor:
    """The logits after each token from the fourth on, [2, n, V], from requests that are never of the same length."""
    length, device = len(texts[0]), cached.device
    cached.start([texts[0][:3], texts[1][:2]], length + 3)
    first = torch.tensor([[texts[0][2], 1, 2], [texts[1][1], 3, 0]], device=device)
    cached.extend(first, torch.tensor([3, 2], device=device))
    cached.truncate(torch.tensor([3, 2], device=device))
    rest = torch.tensor([[*texts[0][3:], 0], texts[1][2:]], device=device)
    logits = cached.extend(rest, torch.tensor([length - 3, length - 2], device=device)).logits
    return torch.stack([logits[0, :-1], logits[1, 1:]]).float()
