"""Every yaml under conf composes and says what the schema and the classes can take; names agree across folders."""

import functools
import inspect
from dataclasses import is_dataclass

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from specbench.core import rng, sampling_params
from specbench.core.conf import CONF
from specbench.core.machine import devices
from specbench.drafters import Drafter
from specbench.runs import config
from specbench.runs.checks import check_job
from specbench.runs.overrides import spelled_out
from specbench.runs.workloads import load_prompts
from specbench.sampling import SamplingParams

ROOT = CONF.parent
EXPERIMENTS = sorted(path.stem for path in (CONF / "exp").glob("*.yaml"))
CHOICES = sorted(
    tuple(path.relative_to(CONF).with_suffix("").as_posix().split("/", maxsplit=1))  # verifier, external/transformers
    for path in CONF.glob("*/**/*.yaml")
    if path.parent != CONF / "exp" and CONF / "hydra" not in path.parents
)
BY_GROUP = {group: [name for other, name in CHOICES if other == group] for group, _ in CHOICES}
LAUNCHERS = sorted((CONF / "hydra").rglob("*.yaml"))
WITHOUT_QUESTION = {"smoke"}  # checks the machine, so nothing to analyse
SHARED_MODULES = {"__init__", "command", "decoding", "folder", "metrics", "page"}


@functools.cache
def composed(*overrides: str, hydra: bool = False) -> DictConfig:
    """Not to be changed: composing takes a quarter of a second, so that tests share what comes of it."""
    config.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides), return_hydra_config=hydra)


def chosen(group: str, name: str) -> DictConfig:
    """The group's node; groups do not read one another, so that a choice of each is composed at once."""
    place = BY_GROUP[group].index(name)
    return composed(*(f"{other}={names[place]}" for other, names in BY_GROUP.items() if place < len(names)))[group]


def test_the_folders_were_found():
    assert " ".join(BY_GROUP) == "drafter engine pair protocol sampler source tracking verifier workload"
    assert {"smoke", "gamma_sweep", "temperature_sweep"} <= set(EXPERIMENTS)


@pytest.mark.parametrize(("group", "name"), CHOICES, ids=[f"{g}={n}" for g, n in CHOICES])
def test_every_choice_composes_with_the_defaults(group, name):
    written = OmegaConf.load(CONF / group / f"{name}.yaml")
    got = OmegaConf.to_container(chosen(group, name))
    for default in written.pop("defaults", []):  # "/verifier@other: naive" puts another choice under a key
        if isinstance(default, str):  # a choice of the same group, some keys of which this one changes
            written = OmegaConf.merge(
                {} if default == "_self_" else OmegaConf.load(CONF / group / f"{default}.yaml"), written
            )
            continue
        (choice, value), *_ = default.items()
        source, key = choice.strip("/").split("@")
        written[key] = OmegaConf.load(CONF / source / f"{value}.yaml")
    schema = config.Config.__dataclass_fields__[group].default_factory
    typed = OmegaConf.structured(schema) if is_dataclass(schema) else {}  # has more keys than a choice needs to name
    # Nothing of the default choice is left, nothing went elsewhere.
    assert got == OmegaConf.to_container(OmegaConf.merge(typed, OmegaConf.to_container(written)))


@pytest.mark.parametrize(("group", "name"), CHOICES, ids=[f"{g}={n}" for g, n in CHOICES])
def test_every_choice_says_what_it_is(group, name):
    assert (CONF / group / f"{name}.yaml").read_text().startswith("# ")


@pytest.mark.parametrize(
    ("group", "name"),
    [c for c in CHOICES if c[0] in ("drafter", "verifier", "protocol", "source")],
    ids=lambda text: text,
)
def test_components_take_the_arguments_of_their_yaml(group, name):
    settings = OmegaConf.to_container(chosen(group, name))  # ??? included
    made = get_object(settings.pop("_target_"))
    inspect.signature(made).bind(**settings)
    assert group != "drafter" or issubclass(made, Drafter)


@pytest.mark.parametrize("path", LAUNCHERS, ids=lambda path: path.stem)
def test_launchers_take_the_arguments_of_their_yaml(path):
    assert path.read_text().startswith("# ")
    settings = OmegaConf.to_container(OmegaConf.load(path))
    inspect.signature(get_object(settings.pop("_target_"))).bind(**settings)


@pytest.mark.parametrize("name", [name for group, name in CHOICES if group == "sampler"])
def test_samplers_are_valid(name):
    SamplingParams(**OmegaConf.to_container(chosen("sampler", name)))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_composes_with_each_value_it_sweeps(name, thorough):
    """With the last, and with all of them in the longer form."""
    swept = composed(f"+exp={name}", hydra=True).hydra.sweeper.params
    assert swept
    overrides = OverridesParser.create().parse_overrides([f"{key}={values}" for key, values in swept.items()])
    for override in overrides:
        values = list(override.sweep_string_iterator())
        assert len(values) == len(set(values)) > 1
        value_words = [spelled_out(f"{override.key_or_group}={value}") for value in values]
        # One choice of a group stands for the others, which compose with the defaults: see above.
        again = [words for words in value_words[1:] if tuple(words[0].split("=")) in CHOICES]
        kept = [words for words in value_words if words not in again]
        for words in kept if thorough else kept[-1:]:
            check_job(config.as_config(composed(f"+exp={name}", *words)))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_begins_with_its_command(name):
    lines = (CONF / "exp" / f"{name}.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# python -m specbench +exp={name}"]
    assert lines[2].startswith("# ")


def test_what_is_checked_without_pytorch_is_what_pytorch_is_given():
    """config.py may not import the modules that these values are of, which need PyTorch."""
    assert sampling_params.LARGEST_SEED == rng.MAX_SEED
    assert tuple(devices.DTYPES) == config.DTYPES


def test_the_schema_of_samplers_has_the_sampling_parameters():
    made, schema = vars(SamplingParams()), vars(config.SamplerConfig())
    assert made == {key: tuple(value) if isinstance(value, list) else value for key, value in schema.items()}


def stems(folder: str, suffix: str) -> set[str]:
    return {path.stem for path in (ROOT / folder).glob(f"*{suffix}")}


def test_experiments_share_their_name_with_their_analysis():
    assert stems("analysis", ".py") - SHARED_MODULES == set(EXPERIMENTS) - WITHOUT_QUESTION


def test_experiments_share_their_name_with_their_text():
    assert stems("experiments", ".md") - {"README"} == set(EXPERIMENTS) - WITHOUT_QUESTION


def test_embedded_workload():
    prompts = load_prompts("embedded:embedded.jsonl")
    assert len(prompts) >= 64
    assert len({prompt.name for prompt in prompts}) == len({prompt.text for prompt in prompts}) == len(prompts)
