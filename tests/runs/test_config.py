"""What Hydra composed as a job's settings, and the file that has them."""

from dataclasses import asdict
from pathlib import Path

import pytest

from specbench.runs.config import Config, read_settings, typed, write_settings
from tests.tree.test_conf import composed

CODE = ["${", "${x}", "$${{x}", "\\${", "\\\\${x}", "a\\", "$", "{}", "1e3", "null", "é\n"]


def test_texts_that_look_like_interpolations_are_kept(tmp_path: Path) -> None:
    """A stop string or a system prompt may be code; on the command line it has a backslash before its ``${``."""
    config = typed(composed('sampler.stop=["\\${"]', 'pair.system="Write \\${x}"'))
    assert isinstance(config, Config)
    assert (config.sampler.stop, config.pair.system) == (["${"], "Write ${x}")
    config.verifier |= {"texts": CODE, "by_name": {"a": CODE[0]}}
    write_settings(tmp_path, config)
    assert read_settings(tmp_path) == asdict(config)


@pytest.mark.parametrize("written", [None, "", "[", "a: [", "3", "a: ${nothing}"])
def test_settings_that_cannot_be_read_are_none(tmp_path: Path, written: str | None) -> None:
    if written is not None:
        (tmp_path / "config.yaml").write_text(written)
    assert read_settings(tmp_path) == {}
