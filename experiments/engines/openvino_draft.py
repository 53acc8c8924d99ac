"""OpenVINO GenAI alone: are texts sampled with a draft model distributed as texts sampled without one?

    python experiments/engines/openvino_draft.py models/ov-target models/ov-draft

Samples texts of three tokens both ways at temperature 1, twice with fresh seeds, and compares each token's counts.
"""

import collections
import sys

import openvino_genai
from scipy.stats import chi2_contingency

PROMPT, TEXTS, TOKENS = "The capital of France is", 500, 3
TARGET, DRAFT = sys.argv[1:]
SCHEDULER = openvino_genai.SchedulerConfig()
SCHEDULER.cache_size = 1


def sample(pipeline, seed, **more):
    prompt = pipeline.get_tokenizer().encode(PROMPT)
    settings = dict(do_sample=True, ignore_eos=True, apply_chat_template=False, max_new_tokens=TOKENS, **more)
    return [pipeline.generate(prompt, rng_seed=seed + i, **settings).tokens[0] for i in range(TEXTS)]


draft = openvino_genai.draft_model(DRAFT, "CPU")
plain = openvino_genai.LLMPipeline(TARGET, "CPU", scheduler_config=SCHEDULER)
speculative = openvino_genai.LLMPipeline(TARGET, "CPU", scheduler_config=SCHEDULER, draft_model=draft)
for seed in (0, 1_000_000):
    ways = [
        sample(plain, seed),
        sample(plain, seed + TEXTS),
        sample(speculative, seed + 2 * TEXTS, num_assistant_tokens=3),
    ]
    for place in range(TOKENS):
        counts = [collections.Counter(text[place] for text in texts) for texts in ways]
        common = [token for token, n in sum(counts, collections.Counter()).most_common() if n >= 15]
        rows = [[*(c[token] for token in common), TEXTS - sum(c[token] for token in common)] for c in counts]
        tests = {"plain, plain": chi2_contingency(rows[:2]), "plain, speculative": chi2_contingency(rows[::2])}
        print(f"token {place + 1}", {name: f"p = {test.pvalue:.1e}" for name, test in tests.items()})
