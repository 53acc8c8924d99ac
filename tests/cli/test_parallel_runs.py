"""parallel=tensor from the command line: one sweep, one voice; no rank waits for one that has gone."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

import pytest
import torch

from specbench.core.errors import ConfigError, ModelError
from specbench.core.machine import devices, ranks
from specbench.core.machine.files import Origin
from specbench.core.machine.signals import Interrupted, interruptible
from specbench.extras.parallel import sharding
from specbench.models import load_pair
from specbench.runs import parallel
from specbench.runs.checks import check_launcher, check_parallel
from tests.extras.test_parallel import sharded
from tests.helpers import families
from tests.helpers.command_lines import clean_environment
from tests.helpers.forked_ranks import environment
from tests.helpers.processes import apart


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    """The folder where each function of tests/helpers/parallel_scenarios.py has left what was wrong."""
    folder = tmp_path_factory.mktemp("ranks")
    apart("tests.helpers.parallel_scenarios", (str(folder),), clean_environment(folder, hide_gpus=True))
    return folder


@pytest.mark.thorough
@sharded
@pytest.mark.parametrize("name", ["one_sweep", "killed", "failed"])
def test_scenario(scenarios, name):
    """What has to be stands in the function of its name."""
    wrong = (scenarios / f"{name}.txt").read_text()
    assert not wrong, wrong


@pytest.fixture
def two_ranks(monkeypatch):
    for name, value in environment(0, 1).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("settings", "changes", "says"),
    [
        (("none", "auto"), {}, ("parallel=none: torchrun started 2 processes", "Add parallel=tensor")),
        (("tensor", "cuda:1"), {}, ("device=cuda:1: ", "Use device=auto.")),
        (("tensor", "auto"), {"LOCAL_WORLD_SIZE": "1"}, ("parallel=tensor: 2 processes on several machines",)),
    ],
)
def test_what_does_not_fit_torchrun_is_refused(two_ranks, monkeypatch, settings, changes, says):
    for name, value in changes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as raised:
        check_parallel(*settings)
    assert all(words in str(raised.value) for words in says)


def test_what_fits_passes(two_ranks, monkeypatch):
    check_parallel("tensor", "auto")
    check_launcher("basic")
    with pytest.raises(ConfigError, match="hydra/launcher=joblib: .*Leave it out"):
        check_launcher("joblib")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    check_parallel("none", "cuda:1")
    check_launcher("joblib")
    with pytest.raises(ConfigError, match="parallel=tensor: there is one process alone. .*torchrun --nproc-per-node=2"):
        check_parallel("tensor", "auto")


@pytest.mark.parametrize(
    ("parallel", "says"),
    [("tensor", "parallel=tensor: there is one process alone"), ("pipeline", "parallel=pipeline: not known")],
)
def test_load_pair_refuses_it_too(parallel, says):
    with pytest.raises(ConfigError, match=says):
        load_pair("embedded:target", "embedded:draft", device="cpu", parallel=parallel)


def test_every_rank_has_the_gpu_of_its_number(two_ranks, monkeypatch):
    count = [4]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count[0])
    monkeypatch.setenv("RANK", "1")
    assert devices.device_of_rank("auto") == devices.device_of_rank("cuda") == "cuda:1"
    with pytest.raises(ConfigError, match="device=cpu: .*CUDA_VISIBLE_DEVICES"):
        devices.device_of_rank("cpu")
    count[0] = 1
    with pytest.raises(ConfigError, match="parallel=tensor: 2 processes, and 1 GPUs here. Use --nproc-per-node=1"):
        devices.device_of_rank("auto")
    count[0] = 0
    assert devices.device_of_rank("auto") == "auto"


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("gpt2", 2, "transformers has no plan of how to shard 'gpt2'"),
        ("llama, one key head", 2, "its 1 num_key_value_heads do not divide by 2. Choose another model"),
        ("llama, no groups", 3, "its 4 num_attention_heads do not divide by 3. Start 2 processes"),
    ],
)
def test_models_that_cannot_be_cut_are_refused_by_their_configuration(two_ranks, monkeypatch, name, size, says):
    monkeypatch.setenv("WORLD_SIZE", str(size))
    with pytest.raises(ModelError) as raised:
        sharding.check_divisible(families.CONFIGS[name](), Origin("pair.target", "mine", ""))
    assert str(raised.value).startswith("pair.target=mine: parallel=tensor")
    assert says in str(raised.value)


@pytest.mark.parametrize("deaf", [True, False])
def test_a_process_that_waits_outside_of_python_ends_if_it_is_asked_to(two_ranks, monkeypatch, tmp_path, deaf):
    """As one does whose GPU waits for a rank that has died. If it can hear, it ends by itself and says so itself."""
    monkeypatch.setattr(parallel, "GRACE", 0.3)
    pid = os.fork()
    if pid == 0:
        try:
            with interruptible(), parallel.watched((tmp_path / "reason").write_text):
                (tmp_path / "ready").touch()
                if deaf:
                    lock = ctypes.create_string_buffer(64)  # a mutex, which this thread takes twice
                    ctypes.CDLL(None).pthread_mutex_lock(lock)
                    ctypes.CDLL(None).pthread_mutex_lock(lock)
                time.sleep(60)
        except Interrupted as error:
            os._exit(error.status)
        os._exit(0)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(pid, signal.SIGTERM)
    limit = threading.Timer(20, os.kill, (pid, signal.SIGKILL))
    limit.start()
    _, status = os.waitpid(pid, 0)
    limit.cancel()
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
    assert (tmp_path / "reason").exists() == deaf
    if deaf:
        assert (tmp_path / "reason").read_text().startswith("SIGTERM while it waited for another rank")


def test_without_torchrun_there_is_one_rank(monkeypatch):
    """Variables of another launcher are none of torchrun's."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    assert (ranks.size(), ranks.rank(), ranks.is_rank0()) == (1, 0, True)
    assert ranks.broadcast_from_rank0(lambda: 7) == ranks.together(lambda: 7) == 7
