"""What nobody would write ends in rows that say what was asked, or in one clear message: never in a traceback."""

import json

import pytest

from tests.helpers.command_lines import apart, clean_environment, once

COUNTS = [25, pytest.param(300, marks=pytest.mark.long)]
LOOKS = ("-h", "--help", "--cfg", "--info", "--hydra-help")


@pytest.fixture(scope="module", params=COUNTS)
def ended(tmp_path_factory, request) -> list[dict]:
    """How command lines ended, as many as the parameter says."""

    def make(folder):
        environment = clean_environment(folder, hide_gpus=True)
        apart("tests.helpers.fuzz_command_lines", (str(folder), str(request.param)), environment)

    return json.loads((once(tmp_path_factory, f"fuzz_{request.param}", make) / "ended.json").read_text())


def told(each: dict) -> str:
    return f"{each['overrides']}: exit status {each['status']}\n{each['text'][-1500:]}"


def test_there_are_as_many_as_asked(ended, request):
    assert len(ended) == request.node.callspec.params["ended"]
    assert 2 <= sum(each["status"] == 0 for each in ended) <= len(ended) // 2  # neither all nonsense nor all fine


def test_none_ends_in_a_traceback_a_signal_or_a_hang(ended):
    bad = [told(each) for each in ended if each["status"] not in (0, 1, 2) or "Traceback" in each["text"]]
    assert not bad, "\n\n".join(bad)


def test_a_refusal_names_a_key_that_was_given(ended):
    for each in ended:
        if each["status"] != 0:
            keys = [override.lstrip("+~").partition("=")[0] for override in each["overrides"]]
            assert any(key in each["text"] for key in keys), told(each)


def test_what_ends_well_left_rows_of_what_was_asked(ended):
    for each in ended:
        if each["status"] != 0 or each["overrides"][-1] in LOOKS:
            continue
        assert each["rows"], told(each)
        for override in each["overrides"]:
            key, _, value = override.lstrip("+").partition("=")
            if key in ("seed", "verifier", "temperature") and not {*value} & {*",($"}:
                assert {str(row[key]) for row in each["rows"]} == {value.lstrip("0") or "0"}, told(each)
