"""The command line: what a user gets wrong and what a sweep leaves behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from specbench.core.errors import ConfigError
from specbench.metrics.run_row import COLUMNS_OF
from specbench.runs import listing
from specbench.runs.choices import names
from specbench.runs.config import GROUPS, SamplerConfig
from specbench.sampling import SamplingParams
from tests.helpers.cli_cases import BAD, BAD_INPUT, BUG, FLAGS, GOOD_INPUT, HELP, SWEEP
from tests.helpers.command_lines import Ran, clean_environment, run_once, untracked

LONGEST_MESSAGE = 6  # lines of a refusal


@pytest.fixture(scope="module")
def ran(tmp_path_factory, request, thorough) -> dict[str, Ran]:
    """Every command line of the tests that are run which needs no process of its own, by its reason."""
    chosen = [item.callspec.params.get("case") for item in request.session.items if hasattr(item, "callspec")]
    cases = [case for case in [*BAD_INPUT, *GOOD_INPUT, *FLAGS] if case in chosen or case.reason == "a target alone"]
    cases += [SWEEP, HELP, *([BUG] if thorough else [])]

    def prepare(folder: Path) -> None:
        for number, case in enumerate(cases):
            for name, content in case.files.items():
                path = folder / str(number) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)

    lines = {case.reason: (untracked(case.arguments), case.needs_model) for case in cases}
    return run_once(tmp_path_factory, "command_lines", lines, prepare)


@pytest.mark.cases(14)
@pytest.mark.parametrize("case", BAD_INPUT, ids=[case.reason for case in BAD_INPUT])
def test_bad_input(case, ran):
    got = ran[case.reason].ended
    assert got.status != 0
    got.check(got.status, *case.says)
    # Key, value, problem and remedy; Hydra has errors of its own.
    assert re.search(r"\S=.+?: .+[.;] .+", got.text, re.DOTALL) or "Error" in got.text, got.text
    assert len(got.text.splitlines()) <= LONGEST_MESSAGE, got.text
    assert got.loaded == case.needs_model


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", GOOD_INPUT, ids=[case.reason for case in GOOD_INPUT])
def test_unusual_input_that_works(case, ran):
    got = ran[case.reason]
    got.ended.check(0, *case.says)
    assert len(list(got.folder.rglob("0/results.parquet"))) == 1


def test_a_row_says_what_drafted(ran):
    row = ran["a target alone"].rows.iloc[0]
    assert (row["draft"], row["drafter"]) == ("none", "layer_skip[layers=11,temperature=0.8]")
    assert row["draft_temperature"] == 0.8
    assert pd.isna(row["draft_dtype"])
    assert 0 < row["weight_bytes_draft"] < row["weight_bytes_target"]
    usual = ran[SWEEP.reason].rows.iloc[0]
    assert (usual["draft"], usual["drafter"], usual["draft_dtype"]) == ("embedded:draft", "model", usual["dtype"])


@pytest.mark.thorough
def test_a_replay_says_what_it_replayed(ran):
    (folder,) = ran["columns swapped"].folder.glob("outputs/adhoc/latest/0")
    written = json.loads((folder / "trace.json").read_text())
    assert (written["target"], written["draft"], written["dtype"]) == ("T", "D", "unknown")
    assert (written["texts"], written["tokens"], written["sampler"]["temperature"]) == (1, 2, 1.0)
    assert written["path"].endswith("trace.jsonl")
    assert "log_q swapped" in written["warning"]
    assert ran["columns swapped"].rows["dtype"].tolist() == ["unknown"]


def conditions(ran: Ran) -> dict[str, object]:
    """The columns of the one row that say under which conditions it was measured; None if they are empty."""
    row = ran.rows.iloc[0]
    names = [column for columns in COLUMNS_OF.values() for column in columns]
    return {name: None if pd.isna(row[name]) else row[name] for name in names}


@pytest.mark.thorough
def test_a_row_has_all_sampling_parameters_beside_the_readable_ones(ran):
    row = conditions(ran["recording"])
    sampling = json.loads(row["sampling"])
    assert sampling.pop("processors") == []
    numbers = SamplingParams(temperature=0.7, top_k=50, top_p=0.9).numbers
    assert {name: sampling[name] for name in numbers} == {name: row[name] for name in numbers} == numbers
    assert {"processors", *sampling} == set(vars(SamplerConfig()))
    assert (row["sampler"], row["max_new_tokens"]) == ("chat", 7)


@pytest.mark.thorough
def test_a_row_counts_the_prompts_that_it_does_not_speak_of(ran):
    row = conditions(ran["lines with parameters of their own"])
    assert (row["prompts"], row["own_sampling"], row["temperature"]) == (2, 1, 1.0)
    assert conditions(ran["greedy"])["own_sampling"] == 0


@pytest.mark.thorough
def test_a_row_has_empty_columns_for_what_was_not_used(ran):
    """Nothing verifies while a trace is recorded; what is decoded greedily is asked for by the sampler, and used."""
    row = conditions(ran["recording"])
    unused = [name for name, value in row.items() if value is None]
    assert unused == ["draft_temperature", "verifier", "lossless", "synthetic", "prompt_chunk", "source"]
    row = conditions(ran["greedy"])
    assert [name for name, value in row.items() if value is None] == ["draft_temperature", "prompt_chunk", "source"]
    assert (row["temperature"], row["verifier"], row["gamma"]) == (0, "block", 4)


def test_a_bad_job_does_not_cost_the_sweep_its_others(ran):
    got = ran[SWEEP.reason]
    assert got.ended.status == 1
    assert got.rows["gamma"].tolist() == [1]
    assert got.rows["job"].tolist() == [1]
    failed, counted, remedy = got.ended.text.rstrip().splitlines()[-3:]
    assert failed.startswith("failed: ")
    assert "gamma=-1" in failed
    assert BAD in failed
    assert counted == "1 of 2 jobs done, 1 failed."
    assert "resume=outputs/adhoc/" in remedy
    assert BAD in next(got.folder.glob("outputs/adhoc/*/0/error.txt")).read_text()


@pytest.mark.thorough
def test_a_bug_in_one_verifier_does_not_cost_the_sweep_its_others(ran):
    """The traceback goes into the job's folder, for the author of the verifier, and is not shown."""
    got = ran[BUG.reason]
    assert got.ended.status == 1
    assert got.rows["job"].tolist() == [1]
    assert "Traceback" not in got.ended.text
    assert "KeyError: 'a bug'" in got.ended.text.rstrip().splitlines()[-3]
    assert "Traceback" in next(got.folder.glob("outputs/adhoc/*/0/error.txt")).read_text()


def test_help_lists_what_can_be_chosen_and_leaves_nothing(ran):
    got = ran[HELP.reason]
    got.ended.check(0, *HELP.says)
    assert list(got.folder.iterdir()) == []


@pytest.mark.cases(3)
@pytest.mark.parametrize("case", FLAGS, ids=[case.reason for case in FLAGS])
def test_flags_of_hydra_work(case, ran):
    ran[case.reason].ended.check(0, *case.says)


def test_list_says_in_a_line_what_each_choice_is():
    for group in ("exp", *GROUPS):
        shown = listing.listing(group).splitlines()
        assert [line.split()[0] for line in shown[1:]] == names(group)
        assert all(len(line.split(maxsplit=1)[1]) > 20 for line in shown[1:])
        assert shown[1:] == [line for line in listing.overview().splitlines() if line in shown[1:]]
    with pytest.raises(ConfigError, match=r"^list=verifiers: no such group\. Did you mean verifier\? There are exp, "):
        listing.listing("verifiers")


def test_list_takes_a_folder_of_configurations_of_one_s_own(tmp_path, capsys):
    for name, about in (("echo", "Drafts what stood before."), ("model", "Mine — instead.")):
        path = tmp_path / "drafter" / f"{name}.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {about}\n_target_: echo.Echo\n", encoding="utf-8")
    assert listing.command(["drafter", "--config-dir", str(tmp_path)]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert list(shown) == sorted([*names("drafter"), "echo"])
    assert (shown["echo"], shown["model"]) == ("Drafts what stood before.", "Mine — instead.")
    listing.command(["-cd", str(tmp_path)])
    assert "source=" in (everything := capsys.readouterr().out)
    assert "Drafts what stood before." in everything
    with pytest.raises(ConfigError, match=r"^--config-dir=nowhere: no such folder\. Give the folder of your own"):
        listing.command(["--config-dir", "nowhere"])


def test_help_may_be_cut_short(tmp_path):
    """``--help | head -1``: the reader closes the pipe before all is written, which is no error."""
    read, write = os.pipe()
    os.close(read)
    command, environment = [sys.executable, "-m", "specbench", "--help"], clean_environment(tmp_path)
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.thorough
def test_a_path_that_the_locale_cannot_name_is_refused_before_anything_runs(tmp_path):
    """Libraries take paths for UTF-8: the tokenizer of every job could not be read, and no run was tracked."""
    folder = tmp_path / "läufe"
    folder.mkdir()
    locale = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def ended(where: Path) -> subprocess.CompletedProcess:
        command, environment = [sys.executable, "-m", "specbench", "report"], clean_environment(tmp_path) | locale
        return subprocess.run(command, cwd=where, env=environment, capture_output=True, check=False)

    got = ended(folder)
    assert got.returncode == 2
    assert b"Set LC_ALL=C.UTF-8" in got.stderr
    assert b"Set LC_ALL" not in ended(tmp_path).stderr


def test_a_folder_whose_name_is_no_utf_8_is_refused_before_anything_runs(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    environment = clean_environment(tmp_path) | {"PYTHONUTF8": "1"}
    for where, arguments in ((folder, ["report"]), (tmp_path, ["report", folder]), (folder, ["gamma=2"])):
        command = [sys.executable, "-m", "specbench", *arguments]
        done = subprocess.run(command, cwd=where, env=environment, capture_output=True, check=False)
        assert done.returncode == 2
        assert b"not UTF-8. Rename it, or work in another folder." in b" ".join(done.stderr.split())
        assert b"caf\\udce9" in done.stderr
    assert not os.listdir(folder)
