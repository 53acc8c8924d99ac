"""Requests with gammas of their own: in lines of a workload, and what is refused. test_ways.py has their texts."""

import dataclasses
import json

import pytest

from specbench.core.errors import ConfigError
from specbench.protocols.record import RecordProtocol
from specbench.protocols.settings import unused_of_lines
from specbench.runs.building import check_own, make_requests
from specbench.runs.config import Config, WorkloadConfig
from specbench.runs.workloads import Prompt, load_prompts
from specbench.sampling import SamplingParams
from tests.decoding.test_engines import logs
from tests.helpers.toy import toy_decoder, toy_requests


def test_a_gamma_above_the_decoder_s_is_refused_by_name(toy):
    (request,) = toy_requests((4,))
    for wrong in (4, -1):
        decoding = toy_decoder(toy, gamma=3)
        with pytest.raises(ConfigError, match=rf"gamma=3: request '0' has a gamma of its own, {wrong}, outside 0\.\.3"):
            decoding.run([dataclasses.replace(request, gamma=wrong)])
        assert decoding.active == 0
    plain = toy_decoder(toy, gamma=0)
    assert logs(plain.run([dataclasses.replace(request, gamma=4)])) == logs(plain.run([request]))


def test_lines_of_a_workload_carry_their_own(pair, tmp_path):
    path = tmp_path / "mixed.jsonl"
    lines = [{"gamma": 0}, {"max_new_tokens": 5}, {"gamma": 4, "max_new_tokens": 9}, {"gamma": None}]
    path.write_text("\n".join(json.dumps({"prompt": "def f", **line}) for line in lines))
    prompts = load_prompts(str(path))
    assert [(prompt.gamma, prompt.max_new_tokens) for prompt in prompts] == [(0, None), (None, 5), (4, 9), (None, None)]
    config = Config(workload=WorkloadConfig(path=str(path)), gamma=4, max_new_tokens=32)
    check_own(prompts, config, {})
    made = make_requests(prompts, pair, SamplingParams(), config)
    assert [(request.gamma, request.max_new_tokens) for request in made] == [(0, 32), (None, 5), (4, 9), (None, 32)]
    config.gamma = 3
    says = r"gamma=3: line 3 of .*mixed\.jsonl.*'line-3' has gamma 4, above it.*gamma=4, or lower"
    with pytest.raises(ConfigError, match=says):
        check_own(prompts, config, {})
    config.gamma = 4
    with pytest.raises(ConfigError, match=r"mixed\.jsonl: line 1: gamma 0 .* would be ignored.*=false\. Use X\."):
        check_own(prompts, config, {"gamma": "Use X."})
    says = r"line 2: max_new_tokens 5 of prompt 'line-2' would be ignored .*Remove it, or .*=false\.$"
    with pytest.raises(ConfigError, match=says):
        check_own(prompts, config, {"max_new_tokens": None})
    with pytest.raises(ConfigError, match="line 1: gamma 0 of prompt 'line-1' would be ignored by the protocol"):
        check_own(prompts, config, unused_of_lines(RecordProtocol(1)))
    with pytest.raises(ConfigError, match=r"max_new_tokens=99999: line 7"):
        make_requests([Prompt("x", "a", "line 7", max_new_tokens=99999)], pair, SamplingParams(), config)
