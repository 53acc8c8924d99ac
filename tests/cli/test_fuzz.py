"""Made-up command lines end in rows of the requested choices, or in one clear message: never in a traceback."""

import json

import pytest

from tests.helpers.command_lines import apart, clean_environment, once

COUNTS = [25, pytest.param(300, marks=pytest.mark.long)]
LOOKS = ("-h", "--help", "--cfg", "--info", "--hydra-help")


@pytest.fixture(scope="module", params=COUNTS)
def ended(tmp_path_factory, request) -> list[dict]:
    """How command lines ended; the parameter is their number."""

    def make(folder):
        environment = clean_environment(folder, hide_gpus=True)
        apart("tests.helpers.fuzz_command_lines", (str(folder), str(request.param)), environment)

    return json.loads((once(tmp_path_factory, f"fuzz_{request.param}", make) / "ended.json").read_text())


def describe(run: dict) -> str:
    return f"{run['overrides']}: exit status {run['status']}\n{run['text'][-1500:]}"


def test_there_are_as_many_as_asked(ended, request):
    assert len(ended) == request.node.callspec.params["ended"]
    assert 2 <= sum(run["status"] == 0 for run in ended) <= len(ended) // 2  # neither all nonsense nor all fine


def test_none_ends_in_a_traceback_a_signal_or_a_hang(ended):
    bad = [describe(run) for run in ended if run["status"] not in (0, 1, 2) or "Traceback" in run["text"]]
    assert not bad, "\n\n".join(bad)


def test_a_refusal_names_a_key_that_was_given(ended):
    for run in ended:
        if run["status"] != 0:
            keys = [override.lstrip("+~").partition("=")[0] for override in run["overrides"]]
            assert any(key in run["text"] for key in keys), describe(run)


def test_what_ends_well_left_rows_of_what_was_asked(ended):
    for run in ended:
        if run["status"] != 0 or run["overrides"][-1] in LOOKS:
            continue
        assert run["rows"], describe(run)
        for override in run["overrides"]:
            key, _, value = override.lstrip("+").partition("=")
            if key in ("seed", "verifier", "temperature") and not {*value} & {*",($"}:
                assert {str(row[key]) for row in run["rows"]} == {value.lstrip("0") or "0"}, describe(run)
