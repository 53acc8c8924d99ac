"""README.md and the guides: their Python runs as it stands and prints what it says, their commands compose, their links
lead somewhere."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from specbench.core.conf import config_name
from specbench.exactness import settings
from specbench.protocols.settings import check_conditions, unused
from specbench.runs.choices import build, names
from specbench.runs.commandline import parse_command
from specbench.runs.overrides import spelled_out, values_of
from tests.helpers.command_lines import ROOT
from tests.tree.test_conf import composed

README = (ROOT / "README.md").read_text()
GUIDES = sorted((ROOT / "docs").glob("*.md"))
BESIDE = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
EXPERIMENTS = sorted((ROOT / "experiments").rglob("*.md"))
PAGES = [ROOT / "README.md", *GUIDES, *BESIDE, *EXPERIMENTS]
MODULES = {"verifier.md"}  # whose blocks are files of a reader's own: test_own_verifier.py and test_own_rule.py


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def name_of(block: str) -> str:
    return "_".join(dict.fromkeys(re.findall(r"specbench\.([a-z_]+)\(", block)))


def runnable() -> list:
    pages = [ROOT / "README.md", *(guide for guide in GUIDES if guide.name not in MODULES)]
    return [pytest.param(block, id=f"{page.stem}-{name_of(block)}") for page in pages for block in blocks(page)]


@pytest.mark.cases(5)
@pytest.mark.usefixtures("little_effort", "unchecked")
@pytest.mark.parametrize("block", runnable())
def test_python_blocks_run_as_they_stand_and_print_what_they_say(block, capsys, monkeypatch, tmp_path):
    """A comment behind a print is what it prints. The suite is smaller than a reader's, which takes a minute."""
    small = dataclasses.replace(settings.SUITES["quick"], draws=10_000, serial_draws=0, calls=30, use_calls=0)
    monkeypatch.setitem(settings.SUITES, "quick", small)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    outputs = re.findall(r"^ *print\(.*\)  # (.*)$", block, flags=re.MULTILINE)
    assert printed
    for line in outputs:
        assert any(line in printed_line for printed_line in printed), printed
    left = {path.name for path in tmp_path.iterdir()}
    assert left == set(re.findall(r'open\("([^"]+)", "w"\)', block))  # nothing but what the reader sees written


def test_the_first_blocks_verify_a_batch_and_certify_a_function_in_under_fifteen_lines():
    first = blocks(ROOT / "README.md")[:2]
    assert [name_of(block) for block in first] == ["verify", "certify"]
    for block in first:
        assert sum(bool(line.strip()) for line in block.splitlines()) < 15


def lines() -> str:
    """README, guides and experiments, with a command that goes on behind a backslash as one line."""
    pages = [ROOT / "README.md", *GUIDES, *EXPERIMENTS]
    return "\n".join(re.sub(r" *\\\n *", " ", page.read_text()) for page in pages)


def commands() -> list[str]:
    """The runs and sweeps that a reader is told to start, but for those with configurations of the reader's own."""
    written = re.findall(r"python -m specbench ([^\n`|]*?)(?= {2,}#|`|\n)", lines())
    return [
        command
        for command in dict.fromkeys(written)
        if "=" in command and not {"--config-dir", "..."} & {*command.split()}
    ]


@pytest.mark.cases(15)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("command", commands())
def test_commands_compose(command):
    """And ask for nothing that the protocol ignores. Of a sweep the first job; launchers, which are plugins, and values
    that a shell fills in are left out."""
    left_out = ("resume=", "hydra", "+hydra", "$")
    overrides = [word for word in shlex.split(command) if not word.startswith(left_out)]
    parse_command(overrides)
    first = [re.sub(r"=range\((\d+),.*", r"=\1", word) for word in overrides]
    first = [word if {*"[{"} & {*word} else word.partition(",")[0] for word in first]
    words = [word for override in first for word in spelled_out(override)]
    config = composed(*words)
    OmegaConf.to_container(config)
    protocol = build("protocol", config.protocol)
    check_conditions(values_of(words), unused(protocol), config_name("protocol", protocol))


def test_commands_were_found():
    assert {
        "+exp=gamma_sweep",
        "drafter=tree verifier=tree",
        "protocol=replay protocol.trace=served.jsonl",
        "+exp=gamma_sweep sampler=greedy gamma=2,4,8 protocol.seconds=50",
    } <= set(commands())


def scripts() -> list[tuple[str, str]]:
    """The scripts of the tree that pages tell a reader to start, and their words."""
    written = re.findall(r"python (?:-m )?((?:experiments|tests|specbench\.analysis)[./][\w./]+)(.*)", lines())
    named = [(script, re.split(r"`|  +#|\|", words)[0]) for script, words in written if not script.endswith(".X")]
    return list(dict.fromkeys(named))


@pytest.mark.parametrize(("script", "words"), scripts())
def test_scripts_are_there_and_have_the_options_that_pages_name(script, words):
    path = Path(script) if script.endswith(".py") else Path(script.replace(".", "/") + ".py")
    source = (ROOT / path.as_posix().replace("specbench/analysis", "analysis")).read_text()
    for option in re.findall(r" (--[\w-]+)", words):
        assert f'"{option}"' in source, option


def test_scripts_were_found():
    assert len(scripts()) > 15


def test_the_scripts_of_experiments_say_what_they_take_before_they_do_anything():
    """All but those that judge an engine alone, which take no words. One that took none overwrote data of the tree."""
    files = [path for path in (ROOT / "experiments").rglob("*.py") if '__name__ == "__main__"' in path.read_text()]
    assert len(files) > 10
    for path in files:
        assert "ArgumentParser(" in path.read_text() or "sys.argv[1:2]" in path.read_text(), path


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    """Also where no site is built. Links that leave the tree are not followed."""
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in links:
        path, _, place = link.partition("#")
        if path.startswith("https:"):
            continue
        linked = page.parent / path if path else page
        assert linked.resolve().is_relative_to(ROOT), link
        assert linked.exists(), link
        if place:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.MULTILINE)
            assert place in map(anchor, headings), link


def test_every_guide_is_named_where_a_reader_looks():
    """In README.md, and at the side of every page of the site."""
    contents = (ROOT / "docs/conf.py").read_text()
    assert len(GUIDES) > 5
    for guide in GUIDES:
        assert f"](docs/{guide.name})" in README, guide.name
        assert f'"docs/{guide.stem}"' in contents, guide.name


@pytest.mark.parametrize("group", ["pair", "drafter", "sampler", "workload", "protocol", "source"])
def test_the_table_of_choices_names_every_choice(group):
    table = (ROOT / "docs/sweeps.md").read_text()
    (listed,) = re.findall(rf"^\| `{group}` \| ([^|]*) \|", table, flags=re.MULTILINE)
    assert sorted(listed.strip().split(", ")) == names(group)
