"""Bets on the texts of a judge's run with the probabilities of an EAGLE head, which protocol.draft cannot load.

    python -m experiments.engines.eagle_odds RUN/0/texts.jsonl HEAD

HEAD is what experiments/embedded_pair/eagle_head.py made. A token's probability is the head's as first token of a
draft, from the target's own hidden states; later tokens of a draft have others. Texts are of temperature 1.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from experiments.embedded_pair.eagle_head import EagleHead
from specbench.exactness.statistics.bets import rejected_at
from specbench.exactness.texts.eprocess import e_value, log_factors, log_wealth
from specbench.models import load_pair
from specbench.sampling import RowParams, SamplingParams, logit_rows

FALSE_ALARM = 1e-4


@torch.inference_mode()
def factors_of(pair, head, prompt, texts):
    """log factors [n, bets] of the tokens of each text [m] of one prompt and one length."""
    target, prompt_ids, sampling = pair.target, pair.encode(prompt), SamplingParams()
    tokens = torch.tensor([[*prompt_ids, *ids] for ids in texts])
    hidden = target.model(tokens, use_cache=False).last_hidden_state
    drafted = head(target.model.embed_tokens(tokens[:, 1:]), hidden[:, :-1])
    start = len(prompt_ids)
    p, q = (
        logit_rows(logits, RowParams.of([sampling] * len(logits)))
        for states in (hidden[:, start - 1 : -1], drafted[:, start - 2 : -1])
        for logits in [target.lm_head(states).flatten(0, 1)]
    )
    factors = log_factors(p, q, tokens[:, start:].flatten().tolist(), sampling, None)
    return factors.reshape(len(texts), -1, factors.shape[1])


def main(texts, folder):
    pair, head = load_pair("embedded:target", device="cpu", dtype="float32"), EagleHead.loaded(folder)
    lines = [json.loads(line) for line in texts.read_text().splitlines()]
    for mode in ("speculative", "plain"):
        mine = [line for line in lines if line["question"] == "distribution" and line["mode"] == mode]
        groups, factors = {}, {}
        for number, line in enumerate(mine):
            groups.setdefault((line["prompt"], len(line["token_ids"])), []).append(number)
        for (prompt, _), numbers in groups.items():
            for part in (numbers[i : i + 128] for i in range(0, len(numbers), 128)):
                ids = [mine[number]["token_ids"] for number in part]
                factors |= dict(zip(part, factors_of(pair, head, prompt, ids), strict=True))
        wealth = log_wealth(np.concatenate([factors[number] for number in range(len(mine))]))
        refuted = rejected_at(wealth, FALSE_ALARM)
        after = f", refuted after {refuted:,} tokens" if refuted else ""
        print(f"{mode}: {len(wealth):,} tokens, evidence at most 10^{e_value(wealth):.1f}{after}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, help="texts.jsonl of a judge's job")
    parser.add_argument("folder", type=Path, help="what experiments/embedded_pair/eagle_head.py made")
    options = parser.parse_args()
    main(options.texts, options.folder)
