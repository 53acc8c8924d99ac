"""OpenVINO GenAI as a source: against a stand-in of its module, and against itself if it is installed."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specbench.core.errors import ConfigError, NotInstalledError
from specbench.sources import Mode, Source
from specbench.sources.openvino import OpenVinoSource
from tests.helpers.text_servers import opened, request


class StandIn:
    """What the source calls of OpenVINO GenAI; ``made`` keeps pipelines, ``configs`` what they were asked for."""

    def __init__(self, metrics: Any):
        self.made: list[dict[str, Any]] = []
        self.configs: list[SimpleNamespace] = []
        self.metrics = metrics

    def module(self) -> ModuleType:
        module = ModuleType("openvino_genai")
        outer = self

        class LLMPipeline:
            def __init__(self, target: str, device: str, **how: Any):
                if how.get("KV_CACHE_PRECISION") == "f8":
                    raise RuntimeError("Exception from plugin.cpp:54:\nexpect kvcache type bf16, current: f8\n\n")
                self.speculates = bool({"draft_model", "prompt_lookup"} & set(how))
                outer.made.append({"target": target, "device": device, **how})

            def get_tokenizer(self) -> Any:
                return SimpleNamespace(encode=lambda text: ("text", text), decode=lambda ids: f"decoded {ids}")

            def generate(self, prompt: Any, config: SimpleNamespace) -> Any:
                outer.configs.append(config)
                if getattr(config, "top_p", 1) == 0.5:
                    raise RuntimeError("Check failed at config.cpp:1:\nno such top_p\n")
                return SimpleNamespace(
                    tokens=[[1, 2, 3]], finish_reasons=[SimpleNamespace(name="LENGTH")],
                    extended_perf_metrics=outer.metrics if self.speculates else None,
                    perf_metrics=SimpleNamespace(raw_metrics=SimpleNamespace(m_batch_sizes=[1, 2])),
                )  # fmt: skip

        module.__dict__.update(
            LLMPipeline=LLMPipeline, GenerationConfig=SimpleNamespace, SchedulerConfig=SimpleNamespace,
            get_version=lambda: "2026.4", draft_model=lambda folder, device: (folder, device),
        )  # fmt: skip
        return module


METRICS = SimpleNamespace(
    get_num_draft_tokens=lambda: 9, get_num_accepted_tokens=lambda: 2, get_num_rejected_tokens=lambda: 7,
    main_model_metrics=SimpleNamespace(raw_metrics=SimpleNamespace(m_batch_sizes=[1, 2, 1])),
)  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "openvino_model.xml").touch()
    return str(tmp_path / "target"), str(tmp_path / "draft")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn(METRICS)
    openvino = ModuleType("openvino")
    openvino.__dict__["Tensor"] = lambda row: ("ids", row.tolist())
    monkeypatch.setitem(sys.modules, "openvino_genai", made.module())
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    return made


def test_both_pipelines_are_loaded_and_a_draft_has_counters(folders, stand_in):
    source = opened(OpenVinoSource(*folders, gamma=3, properties={"KV_CACHE_PRECISION": "f32"}))
    assert isinstance(source, Source)
    assert source.engine == "OpenVINO GenAI 2026.4"
    assert [("draft_model" in made, made["KV_CACHE_PRECISION"]) for made in stand_in.made] == [
        (False, "f32"),
        (True, "f32"),
    ]
    (text,) = source.complete([request(seed=3)], Mode.SPECULATIVE)
    (plain,) = source.complete([request(ids=None)], Mode.PLAIN)
    assert text.counters == {"drafted": 9, "accepted": 2, "rejected": 7, "steps": 3}
    assert (text.token_ids, text.text, text.finish_reason) == ((1, 2, 3), "decoded [1, 2, 3]", "length")
    assert plain.counters == {}
    speculative, without = stand_in.configs
    assert (speculative.num_assistant_tokens, speculative.rng_seed, speculative.max_new_tokens) == (3, 3, 4)
    assert speculative.apply_chat_template is False
    assert not hasattr(without, "num_assistant_tokens")
    source.close()
    source.close()


def test_prompt_lookup_is_another_pipeline_whose_steps_are_counted(folders, stand_in):
    stand_in.metrics = None
    source = opened(OpenVinoSource(folders[0], folders[1], method="prompt_lookup", gamma=3, max_ngram_size=2))
    assert stand_in.made[1]["prompt_lookup"] is True
    assert "draft_model" not in stand_in.made[1]
    (text,) = source.complete([request()], Mode.SPECULATIVE)
    assert text.counters == {"accepted": 1, "steps": 2}
    assert stand_in.configs[0].max_ngram_size == 2


def test_sampling_parameters_go_by_its_names(folders, stand_in):
    source = opened(OpenVinoSource(*folders))
    on = {"temperature": 0.5, "top_k": 5, "min_tokens": 2, "stop": ["x"], "stop_token_ids": [4], "ignore_eos": True}
    source.complete([request(**on), request(temperature=0.0, top_k=5)], Mode.PLAIN)
    sampled, greedy = map(vars, stand_in.configs)
    assert sampled.items() >= {"do_sample": True, "temperature": 0.5, "top_k": 5, "min_new_tokens": 2}.items()
    assert (sampled["stop_strings"], sampled["stop_token_ids"], sampled["ignore_eos"]) == ({"x"}, {4}, True)
    assert greedy["do_sample"] is False
    assert not {"temperature", "top_k"} & set(greedy)
    with pytest.raises(ConfigError, match=r"^sampler\.logprobs=1: OpenVINO GenAI 2026.4 cannot set it"):
        source.complete([request(logprobs=1)], Mode.PLAIN)
    with pytest.raises(ConfigError, match=r"it refuses prompt 'abc' \(no such top_p\)"):
        source.complete([request(top_p=0.5)], Mode.PLAIN)


def test_metrics_of_another_version_are_named(folders, stand_in):
    stand_in.metrics = SimpleNamespace(get_num_accepted_tokens=lambda: 2)
    source = opened(OpenVinoSource(*folders))
    with pytest.raises(
        ConfigError, match=r"^source=openvino: its metrics are of another version .*get_num_draft_tokens"
    ):
        source.complete([request()], Mode.SPECULATIVE)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": "nothing"}, r"source\.target=nothing: no folder with an openvino_model\.xml\. Give"),
        *(({"target": target}, rf"source\.target={target}: not a path") for target in (2024, None)),
        ({"draft": None}, r"source\.draft=None: .*use source\.method=prompt_lookup"),
        ({"method": "lookup"}, r"source\.method=lookup: not known\. Use draft or prompt_lookup"),
        ({"properties": "f32"}, r"source\.properties=f32: no mapping\. Use \{NAME: VALUE\}"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_used_are_refused(folders, settings, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        OpenVinoSource(**dict(zip(("target", "draft"), folders, strict=True)) | settings)


@pytest.mark.usefixtures("stand_in")
def test_what_cannot_be_loaded_is_named(folders, monkeypatch):
    with pytest.raises(ConfigError, match=r"loaded \(expect kvcache type bf16, current: f8\)\. .*source\.properties"):
        OpenVinoSource(*folders, properties={"KV_CACHE_PRECISION": "f8"}).open()
    monkeypatch.setitem(sys.modules, "openvino_genai", None)
    with pytest.raises(NotInstalledError, match=r"pip install 'specbench\[openvino\]'"):
        OpenVinoSource(*folders).open()


@pytest.mark.usefixtures("stand_in")
def test_a_failure_without_words_is_named(folders, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(sys.modules["openvino_genai"], "LLMPipeline", fail)
    with pytest.raises(ConfigError, match=r"cannot be loaded \(RuntimeError\)"):
        OpenVinoSource(folders[0], method="prompt_lookup").open()
