"""Times llama.cpp beside engine=compiled on the same weights in float32, plainly and with a draft.

    cmake -B build && cmake --build build --target llama-server    # in a checkout of llama.cpp
    python -m experiments.cpu_speed.llama_cpp build/bin/llama-server

One thread each. The embedded pair is written as GGUF in F32. In every round each way decodes the same requests, one
after the other, so that a change of the machine meets all. llama-server's times are those that it reports, so that
HTTP is left out; ours are of the whole loop of steps. Neither has prompts. Ratios are of the same round. The table goes
to standard output, and texts to --out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import gguf
import httpx
import pandas as pd
import torch
from transformers import PreTrainedModel

from experiments.cpu_speed.measure import GAMMA, decoder, interval
from specbench import load_pair
from specbench.decoding import Decoder, Request
from specbench.models import Pair
from specbench.runs.workloads import load_prompts
from specbench.sampling import SamplingParams

PORTS = {0: 8731, GAMMA: 8732}
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def export(model: PreTrainedModel, pair: Pair, out: Path) -> None:
    """Writes a Llama as GGUF in F32, with the tokens of the pair."""
    config = model.config
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    vocabulary = pair.tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(tokens) - 1))
    merges = json.loads(pair.tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    state = model.state_dict()
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].float().numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].float().numpy())
    for layer in range(config.num_hidden_layers):
        for name, short in NAMES.items():
            weight = state[f"model.layers.{layer}.{name}.weight"].float()
            if short in ("attn_q", "attn_k"):  # llama.cpp rotates neighbours, and transformers halves
                weight = weight.unflatten(0, (-1, 2, config.head_dim // 2)).transpose(1, 2).flatten(0, 2)
            writer.add_tensor(f"blk.{layer}.{short}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextlib.contextmanager
def served(program: str, folder: Path) -> Generator[dict[int, httpx.Client]]:
    """Starts a plain llama-server and one with a draft, by the number of drafted tokens."""
    draft = ["-md", str(folder / "draft.gguf"), "--spec-type", "draft-simple", "--spec-draft-n-max", str(GAMMA)]
    draft += ["--spec-draft-n-min", str(GAMMA), "--spec-draft-p-min", "0", "-td", "1"]
    with contextlib.ExitStack() as stack:
        clients = {}
        for gamma, port in PORTS.items():
            options = ["-m", str(folder / "target.gguf"), "-np", "1", "-t", "1", "-tb", "1", "-c", "1024"]
            command = [program, *options, "--port", str(port), *(draft if gamma else [])]
            server = stack.enter_context(
                subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            )
            stack.callback(server.terminate)
            clients[gamma] = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120)
            while server.poll() is None:
                with contextlib.suppress(httpx.TransportError):
                    if clients[gamma].get("/health").status_code == 200:
                        break
                time.sleep(0.2)
            if server.poll() is not None:
                raise SystemExit(f"llama-server ended with status {server.returncode}: {' '.join(command)}")
        yield clients


def completed(client: httpx.Client, request: Request) -> tuple[float, list[int], float]:
    """Returns the seconds of decoding that llama-server reports, the tokens, and the share of accepted tokens."""
    body = {
        "prompt": list(request.prompt),
        "n_predict": request.max_new_tokens,
        "temperature": request.sampling.temperature,
        "samplers": ["temperature"],
        "seed": request.seed,
        "cache_prompt": False,
        "ignore_eos": True,
        "return_tokens": True,
    }
    reply = client.post("/completion", json=body).raise_for_status().json()
    timings = reply["timings"]
    accepted = timings.get("draft_n_accepted", 0) / max(timings.get("draft_n", 0), 1)
    return timings["predicted_ms"] / 1000, reply["tokens"], accepted


def decoded(decoding: Decoder, request: Request) -> tuple[float, list[int], float]:
    """As :func:`completed`, with a decoder of ours."""
    (completion,) = decoding.start([request])
    started = time.perf_counter()
    while decoding.active:
        decoding.step()
    seconds = time.perf_counter() - started
    drafted = sum(step.num_draft_tokens for step in completion.steps)
    return seconds, completion.token_ids, sum(step.num_accepted for step in completion.steps) / max(drafted, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_server")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("llama_cpp.csv"), help="file of the texts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair("embedded:target", "embedded:draft", device="cpu")
    prompts = load_prompts("embedded:embedded.jsonl", options.requests)
    ids = [(prompt.name, tuple(pair.encode(prompt.text))) for prompt in prompts]
    decoders = {gamma: decoder(pair, "compiled", gamma) for gamma in (0, GAMMA)}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model in (("target", pair.target), ("draft", pair.draft)):
            assert model is not None
            export(model, pair, Path(folder) / f"{name}.gguf")
        with served(options.llama_server, Path(folder)) as clients:
            for number in range(options.rounds + 1):  # the first one prepares, and is not counted
                for temperature in (1.0, 0.0):
                    sampling = SamplingParams(temperature=temperature)
                    for i, (name, prompt) in enumerate(ids):
                        request = Request(name, prompt, 1000 * number + i, sampling, options.tokens)
                        ways = [(program, gamma) for program in ("llama.cpp", "specbench") for gamma in (0, GAMMA)]
                        for program, gamma in ways[:: -1 if (number + i) % 2 else 1]:
                            if program == "specbench":
                                seconds, tokens, accepted = decoded(decoders[gamma], request)
                            else:
                                seconds, tokens, accepted = completed(clients[gamma], request)
                            row = {"round": number, "temperature": temperature, "prompt": name, "program": program}
                            row |= {"gamma": gamma, "seconds": seconds, "tokens": len(tokens), "accepted": accepted}
                            rows += [row | {"text": " ".join(map(str, tokens))}] if number else []
    frame = pd.DataFrame(rows)
    report(frame)
    frame.drop(columns="text").to_csv(options.out, index=False, float_format="%.5g")


def report(frame: pd.DataFrame) -> None:
    print("| T | | llama.cpp | specbench | specbench / llama.cpp |\n|---|---|---|---|---|")
    for temperature, rows in frame.groupby("temperature", sort=False):
        sums = rows.groupby(["program", "gamma", "round"])[["seconds", "tokens"]].sum()
        speed = (sums.tokens / sums.seconds).unstack("round")
        lines = {
            "plain, tokens/s": speed.xs(0, level="gamma"),
            f"gamma {GAMMA}, tokens/s": speed.xs(GAMMA, level="gamma"),
        }
        lines["speedup"] = lines[f"gamma {GAMMA}, tokens/s"] / lines["plain, tokens/s"]
        for name, line in lines.items():
            ours, theirs = line.loc["specbench"], line.loc["llama.cpp"]
            print(f"| {temperature:g} | {name} | {interval(theirs)} | {interval(ours)} | {interval(ours / theirs)} |")
        drafted = rows[rows.gamma > 0].groupby("program").accepted.mean()
        print(f"| {temperature:g} | accepted share | {drafted['llama.cpp']:.3f} | {drafted['specbench']:.3f} | |")
    greedy = frame[frame.temperature == 0].groupby(["round", "prompt"]).text
    print(f"greedy texts that all four ways share: {(greedy.nunique() == 1).mean():.2f}")


if __name__ == "__main__":
    main()
