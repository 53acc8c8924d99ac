"""transformers' generate as a source: every method, its counters, and what it refuses."""

from typing import Any

import pytest

from experiments.embedded_pair.other_vocabulary import in_bytes
from specbench.core.errors import ConfigError
from specbench.core.sampling_params import SamplingParams
from specbench.decoding.engines import EagerEngine
from specbench.drafters.model import ModelDrafter
from specbench.rules.token.masked import MaskedVerifier
from specbench.sources import Mode, Source, TextCompletion, TextRequest
from specbench.sources.own import OwnSource
from specbench.sources.transformers import TransformersSource
from tests.helpers.checkpoints import tiny

PROMPTS = ("def add(a, b):\n    return", "import os\nimport os\nimport")
LENGTH = 12
PENALISED: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True, "repetition_penalty": 2.0}
METHODS: dict[str, dict[str, Any]] = {
    "assisted": {"draft": "embedded:draft"},
    "prompt_lookup": {},
    "early_exit": {"layers": 16},
}


def opened(method: str, **options: Any) -> TransformersSource:
    settings = {
        "target": "embedded:target",
        "gamma": 3,
        "device": "cpu",
        **METHODS.get(method, {}),
        **options,
    }
    source = TransformersSource(method=method, **settings)
    source.open()
    return source


def texts(source: Source, mode: Mode, seed: int = 0, **sampling: Any) -> list[TextCompletion]:
    params = SamplingParams(**sampling)
    return source.complete(
        [
            TextRequest(prompt_id=prompt, prompt=prompt, sampling=params, seed=seed, max_new_tokens=LENGTH)
            for prompt in PROMPTS
        ],
        mode,
    )


def ids(completions: list[TextCompletion]) -> list[tuple[int, ...] | None]:
    return [completion.token_ids for completion in completions]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", METHODS)
def test_each_method_writes_the_plain_text_at_temperature_0_and_counts_its_steps(method):
    source = opened(method)
    assert isinstance(source, Source)
    assert source.engine.startswith("transformers 5.")
    plain, speculative = (
        texts(source, mode, temperature=0.0, ignore_eos=True) for mode in (Mode.PLAIN, Mode.SPECULATIVE)
    )
    assert ids(speculative) == ids(plain)
    for text in speculative:
        assert text.counters["steps"] + text.counters["accepted"] == LENGTH
        assert text.counters["accepted"] <= text.counters["drafted"] <= 3 * text.counters["steps"]
        assert text.finish_reason == "length"
    assert sum(text.counters["accepted"] for text in speculative) > 0
    assert all(text.counters == {} for text in plain)
    source.close()
    source.close()


@pytest.fixture(scope="module")
def penalised() -> list[tuple[int, ...] | None]:
    """Greedy texts of our own decoder under a repetition penalty, which changes them."""
    reference = OwnSource(
        "embedded:target", "embedded:draft", MaskedVerifier(), ModelDrafter(), EagerEngine(), gamma=3, device="cpu"
    )
    reference.open()
    made = ids(texts(reference, Mode.PLAIN, **PENALISED))
    assert made != ids(texts(reference, Mode.PLAIN, **PENALISED | {"repetition_penalty": 1.0}))
    return made


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", METHODS)
def test_a_repetition_penalty_counts_prompt_and_text_as_our_own_decoder_does(method, penalised):
    source = opened(method)
    for mode in Mode:
        assert ids(texts(source, mode, **PENALISED)) == penalised


@pytest.mark.usefixtures("unchecked")
def test_seeds_decide_texts_and_other_randomness_does_not():
    source = opened("assisted")
    first = ids(texts(source, Mode.SPECULATIVE, seed=1))
    assert ids(texts(source, Mode.PLAIN, seed=1)) != first
    assert ids(texts(source, Mode.SPECULATIVE, seed=2)) != first
    assert ids(texts(source, Mode.SPECULATIVE, seed=1)) == first


@pytest.mark.usefixtures("unchecked")
def test_a_text_that_a_stop_token_ends_says_so():
    source = opened("prompt_lookup")
    (plain, _) = texts(source, Mode.PLAIN, temperature=0.0, ignore_eos=True)
    assert plain.token_ids is not None
    (stopped, _) = texts(source, Mode.SPECULATIVE, temperature=0.0, stop_token_ids=[plain.token_ids[2]])
    assert (stopped.token_ids, stopped.finish_reason) == (plain.token_ids[:3], "stop")


@pytest.mark.usefixtures("unchecked")
def test_a_draft_may_have_another_tokenizer(tmp_path):
    """A random one, so that little of it is accepted. Sampling changes transformers' draft; greedy texts follow it."""
    draft = tiny(tmp_path, outputs=300)
    in_bytes(PROMPTS, 300).save_pretrained(draft)
    source = opened("different_tokenizers", draft=str(draft))
    for temperature in (1.0, 0.0):
        speculative = texts(source, Mode.SPECULATIVE, temperature=temperature, ignore_eos=True)
        assert all(text.counters["drafted"] > 0 for text in speculative)
    assert ids(speculative) == ids(texts(source, Mode.PLAIN, temperature=0.0, ignore_eos=True))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "medusa"}, r"source\.method=medusa: not known\. Use assisted, prompt_lookup"),
        ({"draft": None}, r"source\.draft=None: source\.method=assisted drafts with a model"),
        ({"gamma": 0}, r"source\.gamma=0"),
        *(({"layers": layers}, r"source\.layers=.*: not a count") for layers in (0, 2.0, True, "a")),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        TransformersSource(**{"target": "embedded:target", "draft": "embedded:draft"} | settings)


def test_what_the_target_or_generate_cannot_do_is_refused_by_key():
    source = opened("early_exit", layers=99)
    with pytest.raises(ConfigError, match=r"^source\.layers=99: the target has \d+\. Use 1 to \d+"):
        texts(source, Mode.SPECULATIVE)
    with pytest.raises(ConfigError, match=r"^sampler\.presence_penalty=0\.5: transformers .* cannot set it"):
        texts(source, Mode.PLAIN, presence_penalty=0.5)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((), "it is empty"),
        ((4096,), "it has the id 4096, and the target has ids below 4096"),
        ((1,) * 1024, "more than"),
    ],
    ids=["empty", "outside", "long"],
)
def test_prompts_that_the_target_cannot_read_are_refused(prompt, message):
    """generate itself goes on behind the last position, and writes nonsense there."""
    text = TextRequest(prompt_id="a", prompt="", sampling=SamplingParams(), seed=0, max_new_tokens=1, token_ids=prompt)
    source = opened("prompt_lookup")
    for mode in Mode:
        with pytest.raises(ConfigError, match=rf"^prompt=a: .*{message}"):
            source.complete([text], mode)
