"""What docs/verifier.md says of a verifier of one's own: its module, yaml and command, run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cli_cases import AS_SLOW_CODE
from tests.helpers.command_lines import ROOT, Ended, Ran, clean_environment, fenced, run_once

SECTION = "Certify a verifier of your own"
COMMAND = ("protocol=exactness", "verifier=mine", "protocol.suite=quick", "threads=1")
SMALL = (
    *("tracking.mode=disabled", "protocol.draws=10000", "protocol.serial_draws=0"),
    *("protocol.calls=300", "protocol.use_calls=50", "protocol.inputs_seed=1"),
    # So much is drawn, however busy the machine is: 0 is no limit of time.
    *(f"protocol.{part}=0" for part in ("seconds", "input_seconds", "call_seconds")),
)
LOCATED = "protocol.locating_seconds=0"  # thresholds are looked for without a limit of time
LINES = {
    "sound": (*COMMAND, *SMALL, AS_SLOW_CODE),
    "wrong": (*COMMAND, *SMALL, LOCATED, "verifier._target_=wrong.Mine"),
    "faulty": (*COMMAND, *SMALL, AS_SLOW_CODE, "verifier._target_=faulty.Mine"),
}
# Headlines that the section explains; what follows the first words depends on the run.
LOSSLESS, REFUTED, BROKEN = "lossless up to", "not lossless: TV", "broken: "


@pytest.fixture(scope="module")
def modules() -> dict[str, str]:
    """The section's module, and two with a mistake."""
    sound = fenced("docs/verifier.md", SECTION)["python"]

    def changed(old: str, new: str) -> str:
        assert sound.count(old) == 1
        return sound.replace(old, new)

    return {
        "mine": sound,
        "wrong": changed("residual = batched.residual(p, q)", "residual = p"),
        "faulty": changed("arguments.check(draft, target, streams)", 'raise IndexError("no such row")'),
    }


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, modules: dict[str, str], thorough: bool) -> dict[str, Ran]:
    """The command in the newcomer's folder, whose name has to be quoted in a shell."""

    def prepare(folder: Path) -> None:
        (folder / "conf" / "verifier").mkdir(parents=True)
        (folder / "conf" / "verifier" / "mine.yaml").write_text(fenced("docs/verifier.md", SECTION)["yaml"])
        for name, module in modules.items():
            (folder / f"{name}.py").write_text(module)

    chosen = LINES if thorough else {"sound": LINES["sound"]}
    lines = {name: (("--config-dir", "../conf", *line), False) for name, line in chosen.items()}
    return run_once(tmp_path_factory, "my own", lines, prepare)


def shell(line: str, place: Path) -> Ran:
    """Runs a line in a shell whose ``python`` is this one."""
    environment = clean_environment(place)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = subprocess.run(["bash", "-c", line], cwd=place, env=environment, capture_output=True, text=True, check=False)
    return Ran(Ended(done.returncode, done.stdout + done.stderr), place)


def test_the_command_is_the_one_that_is_run():
    words = fenced("docs/verifier.md", SECTION)["bash"].split()
    assert words == ["python", "-m", "specbench", "--config-dir", "conf", *COMMAND]


def test_the_module_as_it_stands_is_lossless(ran):
    """10,000 requests on each small pair and 300 calls drawn from D are enough for the word."""
    got = ran["sound"]
    assert got.ended.status == 0, got.ended.text
    headline = got.certificate["headline"]
    assert headline.startswith(LOSSLESS)
    assert headline in got.ended.text
    folder = got.sweep.resolve().relative_to(got.folder)
    assert f"certificate: {folder}/0/certificate.md" in got.ended.text  # as the section prints it
    assert f"**{headline}** (declared lossless; rule token)" in got.page
    assert "failed" not in got.ended.text


def without_uniforms(text: str) -> str:
    return re.sub(r"uniform: ?[\d.]+|uniform [\d.]+", "uniform", text)


@pytest.mark.thorough
def test_a_refused_token_replaced_by_a_plain_draw_is_refuted(ran):
    """The bug of the section, declared lossless: exit status 1, why, and the example and cause that it prints."""
    got = ran["wrong"]
    assert got.ended.status == 1
    headline = got.certificate["headline"]
    assert headline.startswith(REFUTED)
    assert headline in got.ended.text
    assert f"failed: it is declared lossless and is {headline}" in got.ended.text
    _, _, example = got.page.partition("## The simplest failing example\n")
    assert example
    section = (ROOT / "docs/verifier.md").read_text()
    printed = [line for line in example.partition("\n## ")[0].splitlines() if line.startswith("    ")]
    assert printed
    for line in printed:  # the uniforms are of the middle of a box, and boxes differ with the time that there is
        assert without_uniforms(line) in without_uniforms(section)
    (cause,) = re.findall(r"^Likely cause: .*$", example, flags=re.MULTILINE)
    assert cause in section


@pytest.mark.thorough
def test_a_fault_is_called_broken_and_its_repeat_command_pastes(ran, modules, monkeypatch):
    got = ran["faulty"]
    assert got.ended.status == 1
    number = modules["faulty"].partition("raise IndexError")[0].count("\n") + 1
    headline = got.certificate["headline"]
    assert headline.startswith(BROKEN)
    folder = got.folder.parent
    assert f"IndexError: no such row ({folder}/faulty.py, line {number})" in headline
    assert headline in got.ended.text
    assert "Shown by a request of seed" in got.page
    assert "Traceback" not in got.ended.text

    (line,) = re.findall(r"^    (.* -m specbench .*)$", got.page, flags=re.MULTILINE)
    first = got.sweep.resolve()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    again = shell(line, folder.parent)
    assert got.sweep.resolve() != first, again.ended.text
    assert again.ended.status == 1
    assert got.certificate["headline"] == headline
    assert got.certificate["command"] == line


def test_headlines_are_those_that_the_section_explains():
    section = (ROOT / "docs/verifier.md").read_text().partition(f"## {SECTION}\n")[2].partition("\n## ")[0]
    explained = re.findall(r"^\| `([^`]*)`", section, flags=re.MULTILINE)
    for start in (
        LOSSLESS,
        "not rejected; TV at most",
        "not rejected, but its tokens are not those of the rule",
        REFUTED,
        BROKEN,
    ):
        assert any(headline.startswith(start.strip()) for headline in explained), start
