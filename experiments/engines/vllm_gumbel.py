"""vLLM's model runner V2 alone, on a GPU: drafts and resampled tokens that share their noise, and a server without it.

python experiments/engines/vllm_gumbel.py                                      # counts of a million first tokens
python experiments/engines/vllm_gumbel.py serve --model MODEL --port 8000 ...  # options of vllm serve
"""

import sys

import torch
from scipy.stats import chisquare
from vllm_cpu import serve

REQUESTS, VOCABULARY = 1_000_000, 60
FAR = 1 << 30  # a position that no text reaches


def mend():
    """The entry point of a plugin: drafts draw their noise at positions of their own."""
    from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

    draw = DraftModelSpeculator.sample_draft
    DraftModelSpeculator.sample_draft = lambda self, hidden, place, *rest: draw(self, hidden, place + FAR, *rest)


def first_tokens(target, draft, apart):
    """Tokens [REQUESTS] that begin a step of one drafted token; noise of the draft is ``apart`` positions away."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    requests = torch.arange(REQUESTS, dtype=torch.int32, device="cuda")
    rows = torch.arange(2 * REQUESTS, device="cuda")
    temperature = torch.ones(REQUESTS, device="cuda")
    seeds = torch.randint(2**62, (REQUESTS,), device="cuda")
    positions = 10 + rows % 2  # of the row of the drafted token, and of the one behind it
    drafts = draft.repeat(REQUESTS, 1)
    drawn = gumbel_sample(drafts, requests, temperature, seeds, positions[::2] + apart, apply_temperature=True)
    tokens = torch.stack([torch.zeros_like(drawn), drawn], dim=1).flatten()
    sampled, _ = rejection_sample(
        target.repeat(2 * REQUESTS, 1),
        drafts[:, None],
        tokens,
        torch.arange(0, 2 * REQUESTS + 1, 2, dtype=torch.int32, device="cuda"),
        positions,
        requests,
        requests.repeat_interleave(2),
        (rows % 2).int(),
        temperature,
        seeds,
        1,
    )
    return sampled[:, 0]


def show():
    torch.manual_seed(0)
    target = 1.5 * torch.randn(VOCABULARY, device="cuda")
    draft = target + torch.randn(VOCABULARY, device="cuda")
    expected = REQUESTS * target.double().softmax(dim=0).cpu().numpy()
    for name, apart in {"the same noise": 0, "noise of other positions": FAR}.items():
        counts = first_tokens(target, draft, apart).bincount(minlength=VOCABULARY).cpu().numpy()
        away = abs(counts - expected).sum() / (2 * REQUESTS)
        print(f"{name}: total variation from p {away:.4f}, chi-square p = {chisquare(counts, expected).pvalue:.2g}")


if __name__ == "__main__":
    serve(sys.argv[2:], "vllm_gumbel:mend") if sys.argv[1:2] == ["serve"] else show()
