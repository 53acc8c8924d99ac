"""What a command is planned as, before anything is launched."""

import re
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from specbench.core.errors import ConfigError
from specbench.runs import launchers
from specbench.runs import sweep as sweeps
from specbench.runs.combinations import combinations
from specbench.runs.commandline import parse_command, show
from specbench.runs.config import as_config
from specbench.runs.identity import identity
from specbench.runs.launchers import choices_of
from specbench.runs.state import Status, read_state
from specbench.runs.sweep import JobsRefused, Planner, Sweep


def jobs_of(*overrides: str) -> list[list[str]]:
    return combinations(OverridesParser.create().parse_overrides(list(overrides)))


def planned(*arguments: str) -> Sweep:
    return Planner(parse_command(arguments)).plan()


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_jobs_are_all_combinations_in_the_order_of_their_keys():
    assert jobs_of("gamma=1,2", "seed=range(2)") == [
        ["gamma=1", "seed=0"],
        ["gamma=1", "seed=1"],
        ["gamma=2", "seed=0"],
        ["gamma=2", "seed=1"],
    ]
    assert jobs_of("gamma=1,2", "seed=3", "gamma=4") == [["gamma=4", "seed=3"]]  # the last one of a key counts
    assert jobs_of("verifier=flawed/a,naive") == [["verifier=flawed", "verifier.bug=a"], ["verifier=naive"]]


def test_choices_are_of_groups_that_lie_in_no_other():
    """Of the plan and of a job's row alike."""
    hydra = OmegaConf.create(
        {"runtime": {"choices": {"pair": "hf", "exp": None, "drafter/head": "a", "hydra/help": "b"}}}
    )
    assert choices_of(hydra) == {"pair": "hf"}


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["gamma=interval(0,1)"], "gamma=interval(0,1): not a list of values. Use commas"),
        (["gamma=range(1,1000000000)"], "gamma=range(1,1000000000): 999,999,999 values"),
        (
            ["gamma=range(1,60)", "seed=range(0,1000)"],
            "seed=range(0,1000): 1,000 values, and more than 10,000 jobs with the other keys",
        ),
    ],
)
def test_values_that_cannot_be_listed_are_refused(overrides, words):
    with pytest.raises(ConfigError, match=f"^{re.escape(words)}"):
        jobs_of(*overrides)


def test_times_are_not_taken_side_by_side_unless_asked():
    line = ("gamma=1,2", "hydra/launcher=joblib")
    with pytest.raises(
        JobsRefused, match=r"^hydra/launcher=joblib: jobs that run beside each other.*share_machine=true"
    ):
        planned(*line)
    assert planned(*line, "share_machine=true").waiting


def test_an_experiment_is_a_sweep_unless_a_run_is_asked_for():
    assert len(planned("+exp=smoke").waiting) == 4
    assert len(planned("+exp=smoke", "hydra.mode=RUN").waiting) == 1
    (first, second) = planned("+exp=smoke", "verifier=naive").waiting
    assert (first.label, second.label) == ("gamma=1", "gamma=3")


def test_a_key_of_one_choice_goes_to_the_jobs_of_that_choice():
    sweep = planned("drafter=layer_skip,prompt_lookup", "drafter.layers=4,8", "gamma=2")
    assert [job.overrides for job in sweep.waiting] == [
        ["drafter=layer_skip", "drafter.layers=4", "gamma=2"],
        ["drafter=layer_skip", "drafter.layers=8", "gamma=2"],
        ["drafter=prompt_lookup", "gamma=2"],
    ]
    again = planned("resume=latest", "drafter=layer_skip,prompt_lookup", "drafter.layers=6", "gamma=2")
    assert [job.overrides[1] for job in again.waiting[3:]] == ["drafter.layers=6"]


def test_jobs_that_are_added_without_what_all_others_have_are_announced(monkeypatch):
    """Otherwise 2 prompts of 8 tokens stand beside all 72 of 64, and the report compares them."""
    messages: list[str] = []
    monkeypatch.setattr(sweeps, "say", messages.append)
    planned("gamma=1,2", "workload.limit=2", "max_new_tokens=8", "sampler=greedy")
    planned("resume=latest", "gamma=1,2", "workload.limit=2", "max_new_tokens=8", "sampler=greedy")
    planned("resume=latest")
    assert not messages
    planned("resume=latest", "gamma=3", "max_new_tokens=16")
    lacking = (
        "New jobs lack what all jobs of this sweep have: workload.limit=2 sampler=greedy. Repeat it, if it is meant."
    )
    assert messages == [lacking]


def test_a_key_of_one_choice_goes_to_its_jobs_if_an_experiment_sweeps_the_choices():
    sweep = planned("+exp=drafters", "drafter.layers=4", "drafter.longest=4,5", "sampler.temperature=0")
    options = [[override for override in job.overrides if override.startswith("drafter")] for job in sweep.waiting]
    assert options == [
        ["drafter=model"],
        ["drafter=layer_skip", "drafter.layers=4"],
        *(["drafter=prompt_lookup", f"drafter.longest={longest}"] for longest in (4, 5)),
        *(["drafter=suffix_lookup", f"drafter.longest={longest}"] for longest in (4, 5)),
    ]
    with pytest.raises(HydraException, match=r"drafter\.layer"):
        planned("+exp=drafters", "drafter.layer=4")
    with pytest.raises(HydraException):  # which no choice has
        planned("drafter=layer_skip,prompt_lookup", "drafter.layer=4")
    sweep = planned("verifier=flawed,naive", "verifier.bug=mantissa")
    assert [job.overrides for job in sweep.waiting] == [
        ["verifier=flawed", "verifier.bug=mantissa"],
        ["verifier=naive"],
    ]


def test_of_jobs_that_ask_the_same_none_is_launched_if_one_is_refused():
    sweep = planned("gamma=-1,-1,1")
    assert [job.number for job in sweep.waiting] == [2]
    states = [read_state(sweep.folder / str(number)) for number in range(3)]
    assert [state.status for state in states] == [Status.FAILED, Status.FAILED, Status.PLANNED]
    assert all("gamma=-1: outside 0..64" in state.reason for state in states[:2])


def test_a_resumed_job_that_cannot_run_any_more_is_refused_and_not_launched(here):
    (here / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    first = planned("workload=file", "workload.path=prompts.jsonl", "gamma=1,2")
    assert len(first.waiting) == 2
    (here / "prompts.jsonl").unlink()
    again = planned("resume=latest")
    assert (again.folder, again.waiting) == (first.folder, [])
    assert "workload.path=prompts.jsonl: cannot be read (no such file)" in read_state(first.folder / "0").reason


def test_a_job_that_was_refused_runs_once_it_can(here):
    """What the message asks for was done, and resume= said that the configuration had changed."""
    (here / "a.jsonl").write_text('{"prompt": "a"}\n')
    line = ("workload=file", "workload.path=a.jsonl,b.jsonl", "gamma=1")
    first = planned(*line)
    assert [job.number for job in first.waiting] == [0]
    (here / "b.jsonl").write_text('{"prompt": "b"}\n')
    for arguments in (("threads=1",), line):  # the second time by what it asks now, and no job is added
        again = planned("resume=latest", *arguments)
        assert [(job.number, job.overrides[-2]) for job in again.waiting] == [
            (0, "workload.path=a.jsonl"),
            (1, "workload.path=b.jsonl"),
        ]
    (here / "b.jsonl").write_text('{"prompt": "c"}\n')
    with pytest.raises(ConfigError, match=r"the content of workload\.path changed since job 1 .*start a new sweep"):
        planned("resume=latest")
    assert (first.folder / "1/identity.json").exists()


def test_a_folder_of_configurations_is_searched_beside_those_that_hydra_is_told_of(here):
    for folder, name in (("mine", "a"), ("yours", "b")):
        (here / folder / "verifier").mkdir(parents=True)
        (here / folder / "verifier" / f"{name}.yaml").write_text(
            "_target_: specbench.rules.token.naive.NaiveVerifier\n"
        )
    sweep = planned("--config-dir", "mine", f"hydra.searchpath=[file://{here}/yours]", "verifier=a,b")
    assert [job.choices["verifier"] for job in sweep.waiting] == ["a", "b"]
    assert len(planned("resume=latest", "verifier=a", f"hydra.searchpath=[file://{here}/yours]").waiting) == 2
    with pytest.raises(ConfigError, match=r"^--config-dir=.*nowhere: no such folder\."):
        planned("--config-dir", "nowhere", "gamma=1")


def test_jobs_run_as_they_were_planned(here, monkeypatch):
    """A sweep may take a day, and a yaml that is edited meanwhile is for the next one."""
    (here / "mine/verifier").mkdir(parents=True)
    verifier, ran = here / "mine/verifier/own.yaml", []
    verifier.write_text("_target_: specbench.rules.token.naive.NaiveVerifier\nbits: 8\n")
    monkeypatch.setattr(
        launchers, "run_job", lambda composed: ran.append({"composed": composed, "hydra": HydraConfig.get()})
    )
    quiet = ("hydra/job_logging=disabled", "hydra/hydra_logging=disabled")
    planner = Planner(parse_command(["--config-dir", "mine", "verifier=own,naive", "gamma=1,3", *quiet]))
    sweep = planner.plan()
    verifier.write_text("no yaml: [")
    assert planner.launch(sweep) is None
    assert [job["hydra"].runtime.output_dir for job in ran] == [str(here / sweep.folder / str(n)) for n in range(4)]
    for job, planned_job in zip(ran, sweep.waiting, strict=True):
        settings = asdict(as_config(job["composed"]))
        assert identity(settings, choices_of(job["hydra"])).name == planned_job.id
    assert [job["composed"].verifier.get("bits") for job in ran] == [8, 8, None, None]


def test_help_does_not_copy_all_schemas_for_each_group(monkeypatch):
    """Hydra copied them a hundred times, 5,000 mappings, which took a second of CPU; now it copies 222."""
    copies, copy = [], DictConfig.__deepcopy__
    monkeypatch.setattr(DictConfig, "__deepcopy__", lambda *args: copies.append(1) or copy(*args))
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    with pytest.raises(SystemExit):
        show(["--help"])
    assert len(copies) < 1000


def test_a_sweep_that_cannot_go_on_names_the_keys_that_changed(here):
    yaml = here / "mine/sampler/warm.yaml"
    yaml.parent.mkdir(parents=True)
    yaml.write_text("temperature: 0.9\n")
    sweep = planned("--config-dir", "mine", "sampler=warm", "gamma=1,2").folder
    assert len(planned("resume=latest").waiting) == 2
    yaml.write_text("temperature: 0.5\nstop: [a]\n")
    changes = 'sampler.stop changed from [] to ["a"], sampler.temperature changed from 0.9 to 0.5'
    since = re.escape(" since job 0 (gamma=1) was planned")
    with pytest.raises(ConfigError, match=re.escape(changes) + since):
        planned("resume=latest")
    yaml.write_text("temperature: 0.5\ntop_k: 1\ntop_p: 0.5\nmin_p: 0.1\n")
    with pytest.raises(ConfigError, match=f", and 1 more{since}"):
        planned("resume=latest")
    for damaged in ("[1, 2, 3]", "["):
        (sweep / "0/identity.json").write_text(damaged)
        with pytest.raises(ConfigError, match=f"the configuration changed{since}"):
            planned("resume=latest")
