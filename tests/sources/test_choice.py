"""How a run gets its source: built from its yaml, checked, and refused by protocols that sample from none."""

import logging
import logging.config
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from specbench.core.errors import ConfigError
from specbench.metrics.run_row import emptied
from specbench.protocols.settings import check_conditions, unused
from specbench.runs import config
from specbench.runs.checks import check_job
from specbench.runs.choices import build_source
from specbench.runs.commandline import parse_command
from specbench.runs.identity import identity
from specbench.sources import Mode
from specbench.sources.llama_server import LlamaServerSource
from specbench.sources.openai import OpenAiSource
from tests.helpers.text_servers import llama, serving
from tests.tree.test_conf import composed


class Half:
    modes = frozenset(Mode)


def test_a_source_is_built_with_plain_lists_and_mappings():
    overrides = ["source=openai", "source.url=http://x", "++source.extra={top: [1, {a: b}]}"]
    source = build_source(composed(*overrides).source)
    assert isinstance(source, OpenAiSource)
    assert source.extra == {"top": [1, {"a": "b"}]}
    assert type(source.extra["top"]) is list
    assert build_source(composed().source) is None


def test_an_object_that_is_no_source_is_refused_with_what_it_lacks():
    node = OmegaConf.create({"_target_": f"{__name__}.Half"})
    with pytest.raises(
        ConfigError, match=r"^source=Half: no source: it has no engine, unsupported, takes_seeds, open, complete"
    ):
        build_source(node)


def test_a_protocol_that_samples_from_none_refuses_a_source_and_has_no_column_of_it():
    ignoring: Any = SimpleNamespace(needs_models=True, run=print)
    reading: Any = SimpleNamespace(needs_models=False, run=print, reads_source=True)
    with pytest.raises(ConfigError, match=r"^source=openvino: protocol=p would ignore it\. .*use protocol=judge"):
        check_conditions({"source": "openvino"}, unused(ignoring), "p")
    with pytest.raises(ConfigError, match=r"^source\.url=x: protocol=p would ignore it"):
        check_conditions({"source.url": "x"}, unused(ignoring), "p")
    check_conditions({"source": "openvino"}, unused(reading), "p")
    assert emptied(["source"]) == {"source": None}


@pytest.mark.parametrize("value", ["null", ""])
def test_no_source_is_asked_for_by_leaving_it_out(value):
    with pytest.raises(ConfigError, match=r"^source=.*: not the name of a choice\. Leave it out for none\."):
        parse_command([f"source={value}"])


def test_a_source_without_a_class_is_refused():
    without = config.as_config(composed("source=openai", "source.url=http://x", "source._target_=null"))
    with pytest.raises(ConfigError, match=r"^source=.*: no _target_\. Choose one of conf/source"):
        check_job(without)


def test_jobs_without_a_source_are_those_of_older_sweeps_and_a_source_is_another_job():
    settings = asdict(config.as_config(composed()))
    older = {key: value for key, value in settings.items() if key != "source"}
    assert identity(settings, {})[0] == identity(older, {})[0]
    other = asdict(config.as_config(composed("source=openai", "source.url=http://x")))
    assert identity(other, {})[0] != identity(settings, {})[0]


def test_requests_are_not_told_one_by_one(capsys, monkeypatch):
    """Hydra's root logger tells what is INFO, and httpx tells every request so."""
    logging_settings = OmegaConf.to_container(composed(hydra=True).hydra.job_logging, resolve=True)
    assert isinstance(logging_settings, dict)
    monkeypatch.setattr(logging.root, "handlers", list(logging.root.handlers))
    level = logging.root.level
    try:
        logging.config.dictConfig(logging_settings)
        with serving(llama()) as server:
            source = LlamaServerSource(server.url)
            source.open()
            source.close()
    finally:
        logging.root.setLevel(level)
        logging.getLogger("httpx").setLevel(logging.NOTSET)
    printed = capsys.readouterr()
    assert "HTTP Request" not in printed.out + printed.err
