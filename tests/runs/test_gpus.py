"""A GPU a job, where jobs run beside each other on one machine."""

import threading

import pytest
import torch

from specbench.runs import gpus
from specbench.runs.gpus import jobs_at_once, pinned


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpus, "PAUSE", 0.01)
    monkeypatch.setattr(gpus, "_before", [])


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_jobs_beside_each_other_have_different_gpus(two_gpus, tmp_path, device):
    with pinned(device, tmp_path, True) as one, pinned(device, tmp_path, True) as other:
        assert (one, other) == ("cuda:0", "cuda:1")
    with pinned(device, tmp_path, True) as again:
        assert again == "cuda:1"  # this process had it last


def test_a_job_waits_for_a_gpu(two_gpus, tmp_path):
    got: list[str] = []

    def third() -> None:
        with pinned("auto", tmp_path, True) as device:
            got.append(device)

    with pinned("auto", tmp_path, True):
        with pinned("auto", tmp_path, True):
            waiting = threading.Thread(target=third)
            waiting.start()
            waiting.join(0.2)
            assert got == []
        waiting.join(10)
        assert got == ["cuda:1"]


@pytest.mark.parametrize(("device", "beside"), [("auto", False), ("cpu", True), ("cuda:1", True)])
def test_what_was_asked_for_stays(two_gpus, tmp_path, device, beside):
    with pinned(device, tmp_path, beside) as got:
        assert got == device
    assert not list(tmp_path.iterdir())


def test_one_gpu_is_shared(monkeypatch, tmp_path):
    """There is nothing to choose; that jobs share it was asked for (share_machine)."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pinned("auto", tmp_path, True) as one, pinned("auto", tmp_path, True) as other:
        assert one == other == "auto"


def test_a_process_stays_with_its_gpu_if_it_is_free(two_gpus, tmp_path):
    """It keeps the pair there; on another GPU it would hold memory of both."""
    with pinned("auto", tmp_path, True) as others:  # another process, which ends
        assert others == "cuda:0"
        gpus._before.clear()
        with pinned("auto", tmp_path, True) as first:
            pass
    for _ in range(3):
        with pinned("auto", tmp_path, True) as again:
            assert again == first == "cuda:1"


@pytest.mark.parametrize(
    ("jobs", "device", "gpus", "expected"),
    [
        *((-1, "auto", 4, 4), (8, "cuda", 4, 4), (2, "auto", 4, 2), (-7, "auto", 4, 2)),
        *((-1, "cpu", 4, -1), (-1, "auto", 1, -1), (3, "auto", 0, 3)),
    ],
)
def test_joblib_runs_no_more_jobs_than_there_are_gpus(monkeypatch, jobs, device, gpus, expected):
    """One more would wait, in a process that holds memory on a GPU that another job has."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert jobs_at_once(jobs, device) == expected
