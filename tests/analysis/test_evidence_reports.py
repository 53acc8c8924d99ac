"""Two small runs from the command line, eprocess and greedy_divergence: what W&B gets, and what their reports say."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis import eprocess, greedy_divergence
from analysis.page import words
from specbench.core.errors import ConfigError
from specbench.metrics import results
from specbench.protocols.eprocess import _growth
from specbench.reports import markdown
from specbench.reports.plots import evidence as plots
from tests.analysis.test_analysis import make_row, table_of, write_run
from tests.helpers.command_lines import run_once
from tests.helpers.html_pages import Page
from tests.helpers.wandb_runs import read_run

SHORT = ("threads=1", "batch_size=4", "workload.limit=3", "dtype=float32")
EPROCESS = (
    "+exp=eprocess", *SHORT, "verifier=masked,flawed/raw_target", "sampler=top_p", "protocol.tokens=150",
    "max_new_tokens=48",
)  # fmt: skip
GREEDY = (
    "+exp=greedy_divergence", *SHORT, "verifier=masked,flawed/previous_row_bonus", "max_new_tokens=24",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """The folders of both runs."""
    ran = run_once(
        tmp_path_factory, "evidence", {"eprocess": (EPROCESS, True), "greedy_divergence": (GREEDY, True)}, anew=True
    )
    assert [each.ended.status for each in ran.values()] == [0, 0], "\n".join(each.ended.text for each in ran.values())
    return {name: each.sweep for name, each in ran.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["eprocess", "greedy_divergence"])
def test_the_page_at_a_sweeps_end(runs, name):
    """It holds the tables that report.md holds, and how to run the sweep again."""
    folder = runs[name] / "report"
    page = Page.of(folder / "report.html")
    lines = table_of(folder / "report.md")
    assert page.tables[0] == [list(lines[0]), *(list(line.values()) for line in lines)]
    (again,) = [text for text in page.texts if text.startswith("python -m specbench +exp=")]
    assert again.split()[3:] == [f"+exp={name}", *again.split()[4:]]
    assert "verifier=masked" in again


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "files", "image"),
    [
        ("eprocess", {"eprocess.parquet", "e_certificate.json", results.RESULTS}, "eprocess"),
        ("greedy_divergence", {"greedy_divergence.parquet", results.RESULTS}, "forks"),
    ],
)
def test_rows_certificates_and_figures_reach_wandb(runs, name, files, image):
    """Read back from W&B's own file; the second job is the flawed verifier's, which has forks to draw."""
    job = runs[name] / "1"
    (path,) = job.glob("wandb/offline-run-*/*.wandb")
    tracked = read_run(path)
    (artifact,) = [each for each in tracked.artifacts if each.type == "results"]
    held = {entry.path: Path(entry.local_path) for entry in artifact.manifest.contents}
    assert set(held) == files
    for file, copy in held.items():
        assert copy.read_bytes() == (job / file).read_bytes()
    logged = tracked.history[image]
    assert (tracked.files / logged["path"]).read_bytes() == (job / f"{image}.png").read_bytes()
    assert tracked.summary["verifier"].startswith("flawed/")


@pytest.mark.thorough
def test_the_report_of_evidence(runs):
    folder = runs["eprocess"] / "report"
    sound, flawed = table_of(folder / "report.md")
    certificates = [json.loads((runs["eprocess"] / f"{job}/e_certificate.json").read_text()) for job in (0, 1)]
    assert [sound["verdict"], flawed["verdict"]] == ["not rejected", "rejected"]
    assert flawed["log10 evidence"] == "infinite"
    assert flawed["impossible"] == str(certificates[1]["impossible"])
    assert certificates[1]["impossible"] > 0
    assert flawed["rejected after"] == str(certificates[1]["rejected_at"])
    assert sound["sampling"] == "T=1 top_p=0.9 float32"
    assert sound["no bet"].startswith(f"{certificates[0]['without_bet']} (")
    for name in ("table.md", "table.csv", "table.tex", "figures/evidence_paths.pdf", "figures/evidence_paths.png"):
        assert (folder / name).stat().st_size > 0
    text = (folder / "report.md").read_text()
    assert "0 of 1 runs rejected" in text
    assert "1 of 1 runs rejected" in text


@pytest.mark.thorough
def test_the_report_of_forks(runs):
    folder = runs["greedy_divergence"] / "report"
    sound, flawed = table_of(folder / "report.md")
    assert sound["parted"] == "0 (0.0% to 70.8%)"  # 1 - 0.025^(1/3) of three texts
    assert sound["tokens a fork"].startswith("- (")
    assert int(flawed["unexplained"]) > 0
    for name in ("table.md", "table.csv", "table.tex", "forks.csv", "figures/forks.pdf", "figures/forks.png"):
        assert (folder / name).stat().st_size > 0


def certificate(**changes) -> dict:
    told = {
        "verdict": "not rejected", "tokens": 1000, "texts": 10, "without_bet": 20, "impossible": 0, "rejected_at": None,
        "strongest_bet": "draft 0.1", "dtype": "float32", "log10_e_value": 0.5, "false_alarm": 1e-6, "seed": 0,
        "growth": {"value": -1.0, "low": -1.5, "high": -0.5}, "command": "python",
        "rounding": {"texts": 8, "largest": 1e-5, "over_tolerance": 0.1},
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    }  # fmt: skip
    return {**told, **changes}


def findings(tmp_path: Path, *jobs: tuple[bool, dict]) -> str:
    rows = [
        make_row(job=i, verifier=f"v{i}", lossless=lossless, protocol="eprocess")
        for i, (lossless, _) in enumerate(jobs)
    ]
    run = write_run(tmp_path / "run", rows, empirical=False)
    for i, (_, told) in enumerate(jobs):
        (run / str(i) / "e_certificate.json").write_text(json.dumps(told))
    found = eprocess.certificates(run, results.read_results(run))
    return markdown.text(words("eprocess.findings", found))


def test_a_flawed_verifier_that_is_not_seen_is_named(tmp_path):
    text = findings(tmp_path, (True, certificate()), (False, certificate()))
    assert "0 of 1 runs rejected; evidence reached at most 10^0.50, where 10^6 rejects" in text
    assert "Flawed verifiers: 0 of 1 runs rejected. **Not seen** in these tokens: v1 at T=1 float32" in text


def test_a_false_alarm_and_rounding_beyond_the_tolerance_stand_out(tmp_path):
    rounding = {"texts": 8, "largest": 1.0, "over_tolerance": 3.0}
    told = certificate(verdict="rejected", log10_e_value=None, growth=None, rejected_at=7, rounding=rounding)
    text = findings(tmp_path, (True, told))
    assert "**Sound verifiers: 1 of 1 runs rejected" in text
    assert "**Rounding exceeded the tolerance**" in text


def test_the_growth_over_one_text_has_no_interval(tmp_path):
    """JSON has null there, and the table no nan."""
    run = write_run(tmp_path / "run", [make_row(verifier="v", protocol="eprocess")], empirical=False)
    growth = _growth([np.ones((5, 2))], 0)
    assert (growth["low"], growth["high"]) == (None, None)
    (run / "0" / "e_certificate.json").write_text(json.dumps(certificate(growth=growth)))
    (row,) = eprocess.table(eprocess.certificates(run, results.read_results(run))).to_dict("records")
    assert row["growth"] == f"{growth['value']:.2f}"


def test_a_run_of_another_protocol_is_named(tmp_path):
    run = write_run(tmp_path / "run", [make_row()])
    for build in (eprocess.build, greedy_divergence.build):
        with pytest.raises(ConfigError, match="RUN_DIR"):
            build(run)


def fork(**changes) -> dict:
    row = {
        "job": 0, "verifier": "masked", "dtype": "bfloat16", "gamma": 4, "lossless": True, "prompt": "p", "tokens": 64,
        "position": 15.0, "plain_token": 1.0, "speculative_token": 2.0, "plain_margin": 0.125,
        "speculative_margin": 0.0, "logit_noise": 0.25, "cause": "near tie",
    }  # fmt: skip
    return {**row, **changes}


def test_forks_are_counted_up_to_where_texts_part():
    nowhere = dict.fromkeys(("position", "plain_margin", "speculative_margin", "logit_noise", "cause"))
    found = greedy_divergence.summary(pd.DataFrame([fork(), fork(**nowhere)]))
    assert (found["parted"], found["tokens_followed"], found["fork_rate"]) == (1, 16 + 64, 1 / 80)
    (line,) = greedy_divergence.table(pd.DataFrame([found])).to_dict("records")
    assert line["parted"] == "1 (1.3% to 98.7%)"
    assert line["largest margin"] == "0"


def test_figures_hold_the_rows_and_draw_what_is_infinite():
    values = np.array([0.0, 3.0, np.inf])
    paths = pd.DataFrame({"token": [1, 2, 3], "bet": "all bets", "log10_value": values})
    (line, *_) = plots.eprocess(paths, 1e-6).axes[0].lines
    assert np.array(line.get_xydata()).tolist() == [[1, 0], [2, 3]]
    both = pd.concat([paths.assign(verifier=name, setting="T=1", lossless=False) for name in ("a", "b")])
    (axes,) = plots.evidence_paths(both, 1e-6).axes
    assert [line.get_label() for line in axes.lines[:2]] == ["a", "b"]
    drawn = plots.forks([fork(), fork(plain_margin=0.5, speculative_margin=0.5)]).axes[0].lines
    points = {tuple(point) for line in drawn[:2] for point in np.array(line.get_xydata()).tolist()}
    assert (0.25, 0.5) in points
    assert len(points) == 2  # the exact tie lies at the bottom
