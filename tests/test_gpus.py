"""A GPU a job, where jobs run beside each other on one machine."""

import threading

import pytest
import torch

from specbench.runs import gpus
from specbench.runs.gpus import pinned


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpus, "PAUSE", 0.01)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_jobs_beside_each_other_have_different_gpus(two_gpus, tmp_path, device):
    with pinned(device, tmp_path, True) as one, pinned(device, tmp_path, True) as other:
        assert (one, other) == ("cuda:0", "cuda:1")
    with pinned(device, tmp_path, True) as again:
        assert again == "cuda:0"


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
