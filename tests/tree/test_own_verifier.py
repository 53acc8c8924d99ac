"""What docs/verifier.md says of a verifier of one's own: its module, yaml and command, run as they stand there."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.cli_cases import AS_SLOW_CODE
from tests.helpers.command_lines import ROOT, clean_environment

SECTION = "## Certify a verifier of your own"
# So much is drawn, however busy the machine is: 0 is no limit of time.
UNTIMED = [f"protocol.{part}=0" for part in ("seconds", "input_seconds", "call_seconds")]
SMALL = (
    *("tracking.mode=disabled", "protocol.draws=10000", "protocol.serial_draws=0", "protocol.row_vocabulary=50"),
    *("protocol.calls=300", "protocol.use_calls=50", "protocol.inputs_seed=1", *UNTIMED),
)
LOCATED = "protocol.locating_seconds=0"  # thresholds are looked for without a limit of time
SOUND = "residual = batched.residual(p, q)"
FIRST = "arguments.check(draft, target, streams)"
# Headlines that the section explains; what follows the first words depends on the run.
LOSSLESS, REFUTED, BROKEN = "lossless up to", "not lossless: TV", "broken: "


@dataclass(frozen=True)
class Ended:
    """How a command ended, and the job's folder that it left."""

    status: int
    text: str
    folder: Path

    @property
    def page(self) -> str:
        return (self.folder / "certificate.md").read_text()

    @property
    def certificate(self) -> dict:
        return json.loads((self.folder / "certificate.json").read_text())


@pytest.fixture(scope="module")
def blocks() -> dict[str, str]:
    """The fenced blocks of the section, by language: one each."""
    _, _, rest = (ROOT / "docs/verifier.md").read_text().partition(f"{SECTION}\n")
    section = rest.partition("\n## ")[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)
    assert sorted(language for language, _ in found) == ["bash", "python", "yaml"]
    return dict(found)


@pytest.fixture
def folder(tmp_path, blocks) -> Path:
    """The newcomer's folder, with the yaml; its name has to be quoted in a shell."""
    own = tmp_path / "my own"
    (own / "conf" / "verifier").mkdir(parents=True)
    (own / "conf" / "verifier" / "mine.yaml").write_text(blocks["yaml"])
    return own


def shell(line: str, place: Path) -> Ended:
    """Runs a line in a shell whose ``python`` is this one; the newest job of the newcomer's folder is its."""
    home = place if place.name == "my own" else place / "my own"
    environment = clean_environment(home)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(["bash", "-c", line], cwd=place, env=environment, capture_output=True, text=True, check=False)
    latest = (home / "outputs" / "adhoc" / "latest").resolve()
    return Ended(done.returncode, done.stdout + done.stderr, latest / "0")


def certified(module: str, blocks: dict[str, str], folder: Path, thresholds: str = AS_SLOW_CODE) -> Ended:
    """Runs the section's command, with smaller settings, on a module."""
    (folder / "mine.py").write_text(module)
    return shell(f"{blocks['bash'].strip()} {shlex.join((*SMALL, thresholds))}", folder)


def changed(module: str, old: str, new: str) -> str:
    assert module.count(old) == 1
    return module.replace(old, new)


def test_the_module_as_it_stands_is_lossless(blocks, folder):
    """10,000 requests on each small pair and 300 calls drawn from D are enough for the word."""
    ended = certified(blocks["python"], blocks, folder)
    assert ended.status == 0, ended.text
    headline = ended.certificate["headline"]
    assert headline.startswith(LOSSLESS)
    assert headline in ended.text
    assert f"certificate: {ended.folder.relative_to(folder)}/certificate.md" in ended.text  # as the section prints it
    assert f"**{headline}** (declared lossless; rule token)" in ended.page
    assert "failed" not in ended.text


def without_uniforms(text: str) -> str:
    return re.sub(r"uniform: ?[\d.]+|uniform [\d.]+", "uniform", text)


@pytest.mark.thorough
def test_a_refused_token_replaced_by_a_plain_draw_is_refuted(blocks, folder):
    """The bug of the section, declared lossless: exit status 1, why, and the example and cause that it prints."""
    ended = certified(changed(blocks["python"], SOUND, "residual = p"), blocks, folder, LOCATED)
    assert ended.status == 1
    headline = ended.certificate["headline"]
    assert headline.startswith(REFUTED)
    assert headline in ended.text
    assert f"failed: it is declared lossless and is {headline}" in ended.text
    _, _, example = ended.page.partition("## The simplest failing example\n")
    assert example
    section = (ROOT / "docs/verifier.md").read_text()
    printed = [line for line in example.partition("\n## ")[0].splitlines() if line.startswith("    ")]
    assert printed
    for line in printed:  # the uniforms are of the middle of a box, and boxes differ with the time that there is
        assert without_uniforms(line) in without_uniforms(section)
    (cause,) = re.findall(r"^Likely cause: .*$", example, flags=re.MULTILINE)
    assert cause in section


@pytest.mark.thorough
def test_a_fault_is_called_broken_and_its_repeat_command_pastes(blocks, folder):
    fault = changed(blocks["python"], FIRST, 'raise IndexError("no such row")')
    ended = certified(fault, blocks, folder)
    assert ended.status == 1
    number = fault[: fault.index("raise IndexError")].count("\n") + 1
    headline = ended.certificate["headline"]
    assert headline.startswith(BROKEN)
    assert f"IndexError: no such row ({folder}/mine.py, line {number})" in headline
    assert headline in ended.text
    assert "Shown by a request of seed" in ended.page
    assert "Traceback" not in ended.text

    (line,) = re.findall(r"^    (.* -m specbench .*)$", ended.page, flags=re.MULTILINE)
    again = shell(line, folder.parent)
    assert again.folder != ended.folder, again.text
    assert again.status == 1
    assert again.certificate["headline"] == headline
    assert again.certificate["command"] == line


def test_headlines_are_those_that_the_section_explains():
    section = (ROOT / "docs/verifier.md").read_text().partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `([^`]*)`", section, flags=re.MULTILINE)
    for start in (
        LOSSLESS,
        "not rejected; TV at most",
        "not rejected, but its tokens are not those of the rule",
        REFUTED,
        BROKEN,
    ):
        assert any(each.startswith(start.strip()) for each in explained), start
