"""What is refused by the words of a command line alone, and by the values of a configuration: key, value and remedy."""

import copy
from collections.abc import Sequence

import pytest
from hydra import compose, initialize_config_dir

from specbench.core.conf import CONF
from specbench.core.errors import ConfigError
from specbench.runs import config
from specbench.runs.checks import check_job
from specbench.runs.commandline import parse_command
from specbench.runs.listing import check_command

WORDS = [
    # Keys
    (("gama=3",), "gama=3: no such key. Did you mean gamma? See --help"),
    (("+gama=3",), "gama=3: no such key. Did you mean gamma?"),  # the plus would smuggle it past Hydra
    (("sampler.topp=0.5",), "sampler.topp=0.5: no such key. Did you mean sampler.top_p?"),
    (("verifer=naive",), "verifer=naive: no such key. Did you mean verifier?"),
    (("xep=smoke",), "Did you mean +exp?"),
    (("temperature=0",), "no such key. Did you mean sampler.temperature?"),
    (("hydra.sweep.subdir=x",), "hydra.sweep.subdir=x: a job's folder is hydra.sweep.dir/<its number>. Leave it out"),
    (("hydra.run.dir=here",), "hydra.run.dir=here: a job's folder is hydra.sweep.dir/<its number>. Set hydra.sweep"),
    (("hydra/sweeper=basic",), "hydra/sweeper=basic: sweeps are planned on disk"),
    (("~sampler",), "sampler=nothing: a run needs one. See --help"),
    (("~gamma",), "gamma=???: no value given. Leave out ~gamma."),
    (("verifier=[naive,masked]",), "verifier=[naive,masked]: not the name of a choice. Name one, such as verifier=nai"),
    (("-m", "+exp=gamma_sweep,smoke"), "+exp=gamma_sweep,smoke: several experiments at once"),
    # Characters that Hydra reads in quotes alone
    (("workload=file", "workload.path=läufe.jsonl"), """Write 'workload.path="läufe.jsonl"'"""),
    (("workload.path=a (1).jsonl",), """Write 'workload.path="a (1).jsonl"'"""),
    (("sampler.stop=[a!b]",), "sampler.stop=[a!b]: "),
    # Flags and folders
    (("--experimental-rerun", "job.pkl"), "--experimental-rerun=job.pkl: it reads a pickle"),
    (("-cp", "."), "--config-path=.: specbench has its own. Add yours"),
    (("resume=elsewhere",), "resume=elsewhere: no sweep (no plan.json in it)"),
    # Words that are no key=value
    (("raport",), "command=raport: no such command. Did you mean report?"),
    (("help",), "command=help: no such command. Did you mean --help?"),
    (("run", "+exp=smoke"), "A run needs no word: python -m specbench +exp=smoke."),
    (("verifier",), "Did you mean list verifier, or verifier=NAME?"),
]
VALUES = [
    ("batch_size", 0, "batch_size=0: outside 1..4096. Use 1 to 4096."),
    ("max_new_tokens", 0, "max_new_tokens=0: outside 1..1000000. Use 1 or more."),
    ("seed", -1, "seed=-1: outside 0.."),
    ("threads", 100_000, "threads=100000: outside 0..1024. Use 0 to have it chosen."),
    ("sampler.thinking_token_budget", -1, "sampler.thinking_token_budget=-1: no whole number from 0"),
    ("sampler.temperature", -1.0, "sampler.temperature=-1.0: below 0. Use 0 for greedy"),
    ("sampler.top_k", 2**63, "sampler.top_k=9223372036854775808: not a count of tokens"),
    ("sampler.n", 1_000_000, "sampler.n=1000000: no whole number from 1 to 1024"),
    ("workload.limit", -1, "workload.limit=-1: below 0. Use 0 for all prompts."),
    ("workload.per_category", -1, "workload.per_category=-1: below 0. Use 0"),
    ("workload.pool", "a", "workload.pool=a: no mapping of names to names. Use null, or categories"),
    ("workload.pool", {"a": ["b"]}, "workload.pool={'a': ['b']}: no mapping of names to names"),
    ("tracking.texts", -1, "tracking.texts=-1: below 0. Use 0 for no texts."),
    ("pair.vocabularies", "any", "pair.vocabularies=any: not known. Use same or different."),
    ("device", "nonsense", "device=nonsense: not a device. Use auto, cpu, cuda"),
    ("dtype", "float8", "dtype=float8: not a dtype. Use auto, float32"),
    ("parallel", "pipeline", "parallel=pipeline: not known. Use none or tensor."),
    ("parallel", "tensor", "parallel=tensor: there is one process alone. Start one process a GPU: torchrun"),
]


def read(arguments: Sequence[str]) -> None:
    check_command(arguments[0])
    parse_command(arguments)


def refused(error: ConfigError, words: str) -> bool:
    return words in str(error) and "\n" not in str(error)


@pytest.mark.parametrize(("arguments", "words"), WORDS, ids=[arguments[-1] for arguments, _ in WORDS])
def test_words_of_a_command_line(arguments, words):
    with pytest.raises(ConfigError) as caught:
        read(arguments)
    assert refused(caught.value, words), caught.value


@pytest.fixture(scope="module")
def defaults() -> config.Config:
    config.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return config.as_config(compose("config"))


@pytest.mark.parametrize(("key", "value", "words"), VALUES, ids=[f"{key}={value}" for key, value, _ in VALUES])
def test_values_of_a_configuration(key, value, words, defaults):
    check_job(defaults)
    settings = copy.deepcopy(defaults)
    group, _, name = key.rpartition(".")
    setattr(getattr(settings, group) if group else settings, name, value)
    with pytest.raises(ConfigError) as caught:
        check_job(settings)
    assert refused(caught.value, words), caught.value
