"""What the console shows of names that rich could take for its own."""

from dataclasses import asdict

import pandas as pd
import pytest

from specbench.core.machine.progress import console, say
from specbench.runs.summary import print_summary
from tests.helpers.made_up_rows import make_row

ODD = ["[red]a[/red] :smile:", "[/nothing]", "[bold", ":warning:b", "[link=x]c"]


def row(name: str) -> dict[str, object]:
    speed = {"tokens": 30, "steps": 16, "speedup": 1.5, "speedup_low": 1.25, "speedup_high": 1.75}
    return asdict(make_row(exp=name, hardware=name, pair=name, verifier=name, **speed))


def test_names_are_shown_as_they_are(monkeypatch):
    monkeypatch.setattr(console, "_width", 400)
    with console.capture() as shown:
        print_summary(pd.DataFrame(map(row, ODD)))
        for name in ODD:
            print_summary(pd.DataFrame([row(name)]))
    text = shown.get()
    for name in ODD:
        assert text.count(name) >= 5  # as a pair and a verifier among others; as a title's two names and a verifier
    assert "1.50 [1.25, 1.75]" in text
    assert "1.88" in text  # tokens a step, of the tokens that stand


@pytest.mark.parametrize("width", [40, 60, 90, 120, 400])
def test_a_narrow_terminal_cuts_no_number_and_no_heading(monkeypatch, width):
    monkeypatch.setattr(console, "_width", width)
    with console.capture() as shown:
        print_summary(pd.DataFrame([row("block_fused_with_a_name"), row("a") | {"gamma": 2}]))
    lines, text = shown.get().splitlines(), shown.get()
    assert "\u2026" not in text
    assert max(map(len, (line for line in lines if line[:1] in "\u2500\u2502\u250c\u2514"))) <= width
    words = set(text.replace("\u2502", " ").replace("\u2503", " ").split())
    assert {"1.88", "1.50", "[1.25,", "1.75]", "250.0", "acceptance", "tokens/s", "speedup", "gamma"} <= words


def test_a_title_names_no_pair_that_is_of_some_of_the_runs_alone():
    with console.capture() as shown:
        print_summary(pd.DataFrame([row("a") | {"pair": "hf[thinking=true]"}, row("a") | {"pair": "hf"}]))
    assert shown.get().split("\n")[0].strip() == "a: a"  # experiment and hardware
    assert "hf[thinking=true]" in shown.get()


def test_a_samplers_name_stands_for_a_parameter_that_would_fill_the_screen(monkeypatch):
    monkeypatch.setattr(console, "_width", 400)
    long = "a" * 60
    rows = [row("a") | {"sampler": name, "gamma": 2} for name in ("regex", "json", "free")]
    rows[0]["sampling"] = f'{{"structured_outputs": {{"regex": "{long}"}}}}'
    rows[1]["sampling"] = '{"structured_outputs": {"json": {}}, "thinking_token_budget": 7}'
    with console.capture() as shown:
        print_summary(pd.DataFrame(rows))
    assert "structured_outputs" not in shown.get()
    assert {"regex", "json", "free", "sampler.thinking_token_budget", "7"} <= set(shown.get().split())
    with console.capture() as shown:
        print_summary(pd.DataFrame([*rows, rows[0] | {"sampling": None}]))
    assert long in shown.get()  # a name with two meanings does not tell them apart


@pytest.mark.parametrize("name", ODD)
def test_messages_are_shown_as_they_are(name):
    with console.capture() as shown:
        say(f"pair.target={name}: no such folder.", style="red")
    assert f"pair.target={name}: no such folder." in shown.get()
