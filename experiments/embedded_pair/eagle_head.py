"""Makes an EAGLE head (Li et al., arXiv 2401.15077) of the embedded target, in the form that vLLM reads.

Run ``python -m experiments.embedded_pair.eagle_head --out eagle``: minutes on a CPU, seconds on a GPU.

The head is one layer of the target's shape. At position t it reads the embedding of token t + 1 and the target's last
hidden state of t, and writes an estimate of the hidden state of t + 1, from which the target's own output layer makes
the distribution of token t + 2. Embeddings and output layer are the target's and are not saved.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaModel

from experiments.embedded_pair.corpus import collect, encode
from experiments.embedded_pair.optimise import Loss, crops, train
from specbench.models import load_pair


class EagleHead(nn.Module):
    """One decoder layer without a norm before its attention, as EAGLE has it, behind a projection of its two inputs."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.model: Any = LlamaModel(config)
        self.model.layers[0].input_layernorm = nn.Identity()
        self.model.norm = nn.Identity()
        self.model.embed_tokens = None

    def forward(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Estimated hidden states [B, T, W] from embeddings [B, T, W] and the target's hidden states [B, T, W]."""
        inputs = self.fc(torch.cat([embeddings, hidden], dim=-1))
        return self.model(inputs_embeds=inputs, use_cache=False).last_hidden_state

    def save(self, folder: Path) -> None:
        """Writes configuration and weights, by the names that vLLM expects."""
        self.model.config.save_pretrained(folder)
        weights = {"fc.weight": self.fc.weight.detach(), **self.model.layers.state_dict(prefix="layers.")}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    @classmethod
    def loaded(cls, folder: str | Path) -> EagleHead:
        """Reads what :meth:`save` wrote."""
        head = cls(LlamaConfig.from_pretrained(folder))
        weights = load_file(Path(folder) / "model.safetensors")
        head.load_state_dict({name if name.startswith("fc") else f"model.{name}": w for name, w in weights.items()})
        return head


def eagle_loss(target: Any) -> Loss:
    """KL(p || q) a token plus the smooth L1 distance of hidden states; the paper (section 3.2) has other weights."""

    def loss(head: Any, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            hidden = target.model(tokens, use_cache=False).last_hidden_state
            embeddings = target.model.embed_tokens(tokens[:, 1:])
        predicted = head(embeddings, hidden[:, :-1])
        log_p = target.lm_head(hidden[:, 1:]).log_softmax(-1)
        log_q = target.lm_head(predicted).log_softmax(-1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
        return divergence + functional.smooth_l1_loss(predicted, hidden[:, 1:])

    return loss


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(prog="experiments.embedded_pair.eagle_head", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--files", type=int, default=1000, help="source files to read")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Trains the head that the command line asks for and saves it."""
    args = arguments(argv)
    torch.manual_seed(args.seed)
    pair = load_pair("embedded:target", device="cpu")
    target: Any = pair.target.requires_grad_(False).to(args.device)
    texts = collect().train
    stream = encode(pair.tokenizer.backend_tokenizer, texts[:: max(1, len(texts) // args.files)])
    tokens = torch.from_numpy(stream).to(args.device)
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = 1
    head = EagleHead(config).to(args.device)
    train(head, crops(tokens, 8, 192, args.seed), eagle_loss(target), steps=args.steps, learning_rate=2e-3)
    head.save(args.out)


if __name__ == "__main__":
    main()
