"""mistral.rs alone, with a draft model: how many different texts it samples, and a server of OpenAI's completions.

The last release on PyPI that takes a draft model is 0.6.0 (June 2025), a wheel for Python 3.9 to 3.13.

pip install mistralrs==0.6.0
python experiments/engines/mistralrs_server.py count TARGET DRAFT                  # texts at temperature 1, both ways
python experiments/engines/mistralrs_server.py serve TARGET --draft DRAFT --port 8000
python experiments/engines/mistralrs_server.py serve TARGET --port 8001
"""

from __future__ import annotations

import argparse
import collections
import json
import shutil
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

from completions import serve
from mistralrs import Architecture, ChatCompletionRequest, ModelDType, Runner, Which

SET = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "max_tokens")  # as OpenAI names them
TOP = 64  # log-probabilities that are asked for at each token
OFF = {"n": 1, "repetition_penalty": 1.0, "seed": None, "return_token_ids": None}  # None: any value is passed over


class Engine:
    """A runner that completions.py serves. It samples one text at a time: it panics on several in a batch on a CPU."""

    name, version = "mistral.rs", version("mistralrs")

    def __init__(self, target: str, draft: str | None, gamma: int):
        self.folder = tempfile.TemporaryDirectory()  # the engine reads the copies once
        folder = Path(self.folder.name)
        (folder / "raw.jinja").write_text("{{ messages[0]['content'] }}")  # chat alone returns log-probabilities
        speculation = {"which_draft": model(draft, folder / "draft"), "speculative_gamma": gamma} if draft else {}
        self.runner = Runner(which=model(target, folder / "target"), token_source="none", max_seqs=1, prefix_cache_n=0,
                             jinja_explicit=str(folder / "raw.jinja"), **speculation)  # fmt: skip
        self.lock = threading.Lock()
        self.first_step = gamma if draft else 0  # tokens; with a draft the engine goes on with a text that ends in them
        while draft:  # the engine's own dummy run is such a text: it ends the engine, which then starts anew
            try:
                self.send("a", max_tokens=2 * gamma)
                break
            except KeyboardInterrupt:
                raise
            except BaseException:  # a panic is no Exception
                time.sleep(1)
        vocabulary = json.loads((folder / "target/config.json").read_text())["vocab_size"]
        self.ids = collections.defaultdict(list)
        for token in range(vocabulary):
            self.ids[self.runner.detokenize_text([token], False)].append(token)

    def encode(self, text: str) -> list[int]:
        return self.runner.tokenize_text(text, False, None)

    def reply(self, body: dict) -> dict:
        return self.complete(**options_of(body))

    def complete(self, prompt: str | list[int], stop: list[str] | None = None, **options) -> dict:
        """Returns one choice of OpenAI's, with token ids. Raises ValueError for a request that breaks the engine."""
        if options["max_tokens"] < self.first_step:
            raise ValueError(f"max_tokens below {self.first_step}: with a draft the engine does not end such a text")
        text = prompt if isinstance(prompt, str) else self.runner.detokenize_text(prompt, False)
        if not isinstance(prompt, str) and self.encode(text) != prompt:
            raise ValueError(f"no text has the token ids {prompt}")
        choice = self.send(text, stop_seqs=stop, **options)
        ids = [self.id_of(token) for token in choice.logprobs.content]
        text = choice.message.content or ""
        return {"index": 0, "text": text, "token_ids": ids, "finish_reason": choice.finish_reason}

    def send(self, text: str, **options):
        messages = [{"role": "user", "content": text}]
        request = ChatCompletionRequest(messages, model="target", logprobs=True, top_logprobs=TOP, **options)
        with self.lock:
            return self.runner.send_chat_completion_request(request).choices[0]

    def id_of(self, token) -> int:
        """The id of a sampled token, of which the engine tells the text. Single bytes of characters have one text: the
        log-probability tells them apart if the token is among the TOP likeliest, else the smallest id stands for all.
        """
        likely = [other.token for other in token.top_logprobs if other.logprob == token.logprob]
        ids = self.ids[token.token]
        return next((token for token in ids if token in likely), ids[0])


def model(checkpoint: str, copy: Path):
    """A copy that 0.6.0 reads: rope_theta as transformers 4 had it, and no token in front of prompts but their own."""
    shutil.copytree(checkpoint, copy)
    for name, change in {"config": flatten, "tokenizer": bare}.items():
        path = copy / f"{name}.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
    return Which.Plain(model_id=str(copy), arch=Architecture.Llama, dtype=ModelDType.F32)


def flatten(config: dict) -> dict:
    return config | {"rope_theta": config.get("rope_parameters", config)["rope_theta"]}


def bare(tokenizer: dict) -> dict:
    return tokenizer | {"post_processor": None}


def options_of(body: dict) -> dict:
    """Arguments of Engine.complete. Raises ValueError for a parameter that the engine cannot set."""
    options = {name: body[name] for name in SET if name in body} | {"prompt": body["prompt"]}
    if body.get("top_k", -1) > 0:
        options["top_k"] = body["top_k"]
    if body.get("stop"):
        options["stop"] = list(body["stop"])
    for name in body.keys() - {*SET, "prompt", "top_k", "stop", "model"}:
        if OFF.get(name, body[name]) not in (None, body[name]) or name not in OFF:
            raise ValueError(f"mistral.rs does not set {name}={body[name]}")
    return options


def count(target: str, draft: str, gamma: int, texts: int) -> None:
    engines = {"plain": Engine(target, None, gamma), f"draft, gamma {gamma}": Engine(target, draft, gamma)}
    for name, engine in engines.items():
        for temperature in (1.0, 0.0):
            written = [engine.complete("def add(a, b):", temperature=temperature, max_tokens=8) for _ in range(texts)]
            different = collections.Counter(tuple(choice["token_ids"]) for choice in written)
            (likeliest, times), *_ = different.most_common(1)
            print(f"{name}, T={temperature:g}: {len(different)} different texts of {texts}, {times} times {likeliest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("count", "serve"))
    parser.add_argument("target")
    parser.add_argument("draft_model", nargs="?")
    parser.add_argument("--draft")
    parser.add_argument("--gamma", type=int, default=4)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--texts", type=int, default=20)
    args = parser.parse_args()
    if args.command == "count":
        count(args.target, args.draft_model, args.gamma, args.texts)
    else:
        serve(Engine(args.target, args.draft, args.gamma), args.port)


if __name__ == "__main__":
    main()
