"""One whole run from an empty folder, +exp=smoke: what it leaves adds up. Shared with test_tracking."""

import json

import numpy as np
import pandas as pd
import pytest

from specbench.metrics import results
from specbench.metrics.results import read_results
from specbench.runs.identity import identity
from specbench.runs.plan import read_plan
from tests.helpers.command_lines import SmokeRun


def test_smoke_ends_well(smoke: SmokeRun):
    assert smoke.status == 0, smoke.text
    assert "failed" not in smoke.text
    assert "Results: outputs/smoke/" in smoke.text


def test_smoke_has_a_row_for_each_job(smoke: SmokeRun):
    rows = read_results(smoke.sweep)
    assert rows["job"].tolist() == [0, 1]
    assert [*zip(rows["gamma"], rows["verifier"], strict=True)] == [(3, "naive"), (3, "masked")]
    # What not every machine tells, and what was not asked for.
    unknown = ["cores", "other_cores", "waited", "copy_bandwidth", "prompt_chunk", "draft_temperature"]
    unknown += ["rounds_of", "looks"]  # no rounds were shared
    unknown += [name for name in rows if name.startswith(("shared_tokens", "shared_mass"))]  # one vocabulary
    assert not rows.drop(columns=unknown).select_dtypes("number").isna().any(axis=None)
    assert (rows["rounds"] == 2).all()
    assert (rows["differing_texts"] == 0).all()
    assert (rows["prompts"] == 4).all()
    assert (rows["exp"] == "smoke").all()


def test_smoke_rows_hold_the_settings_that_tell_their_jobs_apart(smoke: SmokeRun):
    """All of them, also keys that the schema gets later: a job's id is that of the settings in its row."""
    for text, job in zip(read_results(smoke.sweep)["config"], read_plan(smoke.sweep).jobs, strict=True):
        settings = json.loads(text)
        choices = settings.pop("choices")
        assert identity(settings, choices).name == job.id
        assert identity({**settings, "made_up": "a"}, choices).name != job.id


def test_smoke_counts_agree_between_tables(smoke: SmokeRun):
    rows = read_results(smoke.sweep).set_index("job")
    steps, texts = (results.read_jobs(smoke.sweep, name).groupby("job") for name in (results.STEPS, results.TEXTS))
    assert (steps["num_emitted"].sum() == rows["tokens"]).all()
    assert (texts["tokens"].sum() == rows["tokens"]).all()
    assert (steps["num_accepted"].sum() == rows["accepted"]).all()
    assert (steps.size() == rows["acceptance_histogram"].map(sum)).all()
    whole = results.read_jobs(smoke.sweep, results.STEPS).query("num_draft_tokens == 3").groupby("job")["num_accepted"]
    assert rows["joint_rates"].map(lambda rates: rates[-1]).tolist() == whole.agg(lambda n: (n == 3).mean()).tolist()
    drawn = results.read_jobs(smoke.sweep, results.EMPIRICAL).groupby(["job", "prefix"])
    assert (drawn["count"].sum() == 128).all()
    assert drawn.ngroups == 2 * 2


def test_smoke_speeds_add_up(smoke: SmokeRun):
    """The speedup is that of the sums over batches, which are medians over the rounds that were timed."""
    times = results.read_jobs(smoke.sweep, "rounds.parquet")
    for row in read_results(smoke.sweep).itertuples():
        assert row.speedup == pytest.approx(row.tokens_per_second / row.plain_tokens_per_second)
        assert sum(row.batch_seconds) == pytest.approx(row.seconds)
        assert sum(row.batch_plain_seconds) == pytest.approx(row.plain_seconds)
        job_times = times[times["job"] == row.job]
        assert len(job_times) == 2 * 2 * 2  # rounds, batches, ways
        for way, name in (("plain", "batch_plain_seconds"), ("speculative", "batch_seconds")):
            taken = job_times[job_times["way"] == way].groupby("batch")["seconds"].agg(["min", "max"])
            medians = pd.Series(getattr(row, name))
            assert (medians >= taken["min"] * (1 - 1e-9)).all()
            assert (medians <= taken["max"] * (1 + 1e-9)).all()
        plain = job_times[job_times["way"] == "plain"].groupby("batch")["tokens"].unique()
        assert [tokens.tolist() for tokens in plain] == [[tokens] for tokens in row.batch_plain_tokens]


def test_smoke_verifiers_of_one_rule_agree(smoke: SmokeRun):
    first, second = read_results(smoke.sweep)["acceptance_histogram"]
    assert first.tolist() == second.tolist()
    texts = results.read_jobs(smoke.sweep, results.TEXTS)
    assert (texts.groupby("prompt")["completion"].nunique() == 1).all()


def test_smoke_leaves_everything_in_each_job_folder(smoke: SmokeRun):
    for job in range(2):
        folder = smoke.sweep / str(job)
        for name in ("acceptance_histogram", "position_rates", "empirical_against_target"):
            assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "gamma: " in (folder / "config.yaml").read_text()
        details = json.loads((folder / "environment.json").read_text())
        row = read_results(smoke.sweep).set_index("job").loc[job]
        assert details == {key: row[key].item() if isinstance(row[key], np.generic) else row[key] for key in details}
        assert not list(folder.glob("error.txt"))
    assert not [path for path in smoke.sweep.rglob(".*") if path.name != ".hydra"]
