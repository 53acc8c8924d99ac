"""llama-cpp-python with prompt lookup, behind OpenAI's completions: its own server returns no token ids.

pip install llama-cpp-python==0.3.36                              # builds llama.cpp
python experiments/engines/llama_cpp_python_server.py TARGET.gguf --lookup 4 --port 8000
python experiments/engines/llama_cpp_python_server.py TARGET.gguf --port 8001

The library's own server, with token ids out of reach, is started by

python -m llama_cpp.server --model TARGET.gguf --draft_model prompt-lookup-decoding --draft_model_num_pred_tokens 4
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from completions import serve
from llama_cpp import GGML_TYPE_F16, GGML_TYPE_F32, Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

SET = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "max_tokens", "stop")
OFF = {"n": 1, "return_token_ids": None}  # None: any value is passed over


class Recorded(Llama):
    """Keeps the token ids of the text that it is completing."""

    def generate(self, *args: Any, **options: Any) -> Iterator[int]:
        self.written: list[int] = []
        for token in super().generate(*args, **options):
            self.written.append(token)
            yield token


class Engine:
    """A model in one thread that completions.py serves, one request at a time.

    Args:
        lookup: tokens drafted by prompt lookup; 0 decodes plainly.
        half: whether keys and values are cached in float16, as by default, in place of float32.
    """

    name, version = "llama-cpp-python", version("llama-cpp-python")

    def __init__(self, target: str, lookup: int, half: bool):
        draft = LlamaPromptLookupDecoding(num_pred_tokens=lookup) if lookup else None
        cached = GGML_TYPE_F16 if half else GGML_TYPE_F32
        threads = {"n_threads": 1, "n_threads_batch": 1}
        self.model = Recorded(
            target,
            n_ctx=512,
            type_k=cached,
            type_v=cached,
            draft_model=draft,
            logits_all=True,
            verbose=False,
            **threads,
        )
        self.lock = threading.Lock()

    def encode(self, text: str) -> list[int]:
        return self.model.tokenize(text.encode(), add_bos=False)

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        options = {name: body[name] for name in SET if body.get(name) is not None}
        options["repeat_penalty"] = body.get("repetition_penalty", 1.0)
        for name in body.keys() - {*SET, "repetition_penalty", "prompt", "model"}:
            if OFF.get(name, body[name]) not in (None, body[name]) or name not in OFF:
                raise ValueError(f"{name}={body[name]} is not set here")
        with self.lock:
            (choice,) = self.model.create_completion(body["prompt"], **options)["choices"]
            return {**choice, "token_ids": self.model.written}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--lookup", type=int, default=0, help="tokens drafted a step, by prompt lookup")
    parser.add_argument("--half", action="store_true", help="cache keys and values in float16, as by default")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    serve(Engine(args.target, args.lookup, args.half), args.port)


if __name__ == "__main__":
    main()
