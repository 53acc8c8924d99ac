"""README.md: its Python blocks run as they stand and print what they say, and its links lead somewhere."""

import dataclasses
import re

import pytest

from specbench.exactness import evidence
from specbench.runs.choices import names
from tests.command_lines import ROOT

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)


def name_of(block: str) -> str:
    return "_".join(dict.fromkeys(re.findall(r"specbench\.([a-z_]+)\(", block)))


@pytest.mark.usefixtures("little_effort", "unchecked")
@pytest.mark.parametrize("block", BLOCKS, ids=name_of)
def test_python_blocks_run_as_they_stand_and_print_what_they_say(block, capsys, monkeypatch, tmp_path):
    """A comment behind a print is what it prints. The suite is smaller than a reader's, which takes a minute."""
    small = dataclasses.replace(evidence.SUITES["quick"], draws=10_000, serial_draws=0, vocabulary=300, regime_draws=64)
    monkeypatch.setitem(evidence.SUITES, "quick", small)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    said = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
    assert printed
    for line in said:
        assert any(line in each for each in printed), printed
    assert list(tmp_path.iterdir()) == []


def test_the_first_blocks_verify_a_batch_and_certify_a_function_in_under_fifteen_lines():
    assert [name_of(block) for block in BLOCKS[:2]] == ["verify", "certify"]
    for block in BLOCKS[:2]:
        assert sum(bool(line.strip()) for line in block.splitlines()) < 15


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files_and_headings(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert links or page != "README.md"
    for link in links:
        path, _, place = link.partition("#")
        if path.startswith("https:"):
            continue
        linked = ROOT / (path or page)
        assert linked.exists(), link
        if place:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            assert place in map(anchor, headings), link


def test_contents_name_every_section():
    contents = README.partition("**Contents.**")[2].partition("\n## ")[0]
    listed = re.findall(r"\[([^\]]+)\]\(#", contents)
    after = re.findall(r"^## (.*)$", README.partition("**Contents.**")[2], flags=re.MULTILINE)
    assert listed == [heading for heading in after if heading != "Licence"]


@pytest.mark.parametrize("group", ["pair", "drafter", "sampler", "workload", "protocol"])
def test_the_table_of_choices_names_every_choice(group):
    (listed,) = re.findall(rf"^\| `{group}` \| ([^|]*) \|", README, flags=re.MULTILINE)
    assert sorted(listed.strip().split(", ")) == names(group)
