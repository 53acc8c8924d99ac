"""The command line as Hydra's own parsers read it, and what Hydra finds wrong with it, in one message."""

import os
import shlex
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import hydra
from hydra._internal import config_loader_impl
from hydra._internal.utils import get_args_parser  # of the flags that hydra.main takes
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError

from specbench.core.conf import CONF
from specbench.core.errors import ConfigError, SpecbenchError
from specbench.core.machine.files import is_text
from specbench.runs.checks import check_config_dir, check_override, did_you_mean
from specbench.runs.choices import keys, names
from specbench.runs.config import GROUPS, OPEN_GROUPS, Config, Yamls, register
from specbench.runs.overrides import in_quotes, key_of, spelled_out, typed, values_of
from specbench.runs.plan import find_sweep, read_plan

QUOTES = "Write key=value, and quotes around special characters, such as 'key=\"a, b\"' or 'key=[\"a=b\"]'."


@dataclass(frozen=True)
class Command:
    """A command line.

    Attributes:
        overrides: ``key=value`` each, for Hydra.
        config_name: of the configuration to start from, usually config.
        config_dir: the user's own configurations (``--config-dir``), as an absolute path.
        resume: the folder of an earlier sweep to go on with.
        shows: whether it shows a configuration or help (``--cfg``, ``--help``), and runs nothing.
    """

    overrides: list[str]
    config_name: str
    config_dir: str | None
    resume: Path | None
    shows: bool


def parse_command(arguments: Sequence[str]) -> Command:
    """Parses a command line, and checks it as far as its words alone tell.

    Raises:
        ConfigError: what is wrong with it.
        NotInstalledError: a launcher whose package is not installed.
    """
    resume = [word.partition("=")[2] for word in arguments if word.startswith("resume=")]
    flags, others = get_args_parser().parse_known_args([word for word in arguments if not word.startswith("resume=")])
    for flag, value, problem, remedy in (
        ("--experimental-rerun", flags.experimental_rerun, "it reads a pickle, which can run code", "Use resume=."),
        ("--config-path", flags.config_path, "specbench has its own", "Add yours to it by --config-dir."),
    ):
        if value is not None:
            raise ConfigError(flag, value, problem, remedy)
    overrides = [part for word in (*flags.overrides, *others) for part in spelled_out(word)]
    for override in [] if flags.shell_completion else overrides:
        check_override(parse_override(override))
    values = values_of(overrides)
    folder, config_dir = None, None if flags.config_dir is None else os.path.abspath(flags.config_dir)
    if resume:
        if "hydra.sweep.dir" in values:
            raise ConfigError("resume", resume[-1], "a folder twice", "Leave out hydra.sweep.dir.")
        folder = find_sweep(resume[-1], values.get("exp"), "resume")
        plan = read_plan(folder)
        config_dir = config_dir or (plan.config_dir if plan else None)
    check_config_dir(config_dir)
    shows = bool(flags.help or flags.hydra_help or flags.cfg or flags.info or flags.shell_completion)
    return Command(overrides, flags.config_name or "config", config_dir, folder, shows)


def check_encoding(arguments: Sequence[str]) -> None:
    """Refuses paths that Python would hand to libraries in another encoding than they were written in.

    Tokenizers, safetensors and W&B take every path for UTF-8. A locale such as POSIX or Latin-1 reads it otherwise.

    Raises:
        ConfigError: an argument, or a folder that every run uses, is not UTF-8; under such a locale, not ASCII.
    """
    encoding = sys.getfilesystemencoding()
    places = [*arguments, str(CONF), os.environ.get("TMPDIR", ""), os.getcwd()]
    if encoding.lower().replace("-", "") == "utf8":
        folders = [place for place in places if "=" not in place]  # what keys hold is checked by parse_override
        if odd := next((place for place in folders if not is_text(place)), None):
            raise ConfigError("path", ascii(odd), "not UTF-8", "Rename it, or work in another folder.")
    elif odd := next((place for place in places if not place.isascii()), None):
        problem = f"outside of ASCII, and Python takes paths for {encoding}, by the locale"
        raise ConfigError("path", ascii(odd), problem, "Set LC_ALL=C.UTF-8, or PYTHONUTF8=1.")


def parse_override(argument: str) -> Override:
    """``key=value`` as Hydra reads it. Raises ConfigError."""
    key, equals, value = argument.partition("=")
    if not is_text(argument):
        raise ConfigError(key_of(argument), ascii(value), "no text that a file could hold", "Use UTF-8.")
    parser = OverridesParser.create()
    try:
        return parser.parse_override(argument)
    except HydraException as error:
        problem = " ".join(str(error).split())
        remedy = QUOTES
    if not equals:
        remedy = "Write key=value. A command, such as list or report, is the first word and takes no flags of a run."
        raise ConfigError("argument", argument, "no key=value", remedy)
    if "," not in value and not value.startswith(("[", "{", "'", '"')):  # quotes belong to parts of these
        try:
            parser.parse_override(f"{key}={in_quotes(value)}")
            problem, remedy = "it has characters that can be read in quotes alone", f"Write {typed(key, value)}"
        except HydraException:
            pass
    raise ConfigError(key, value, problem, remedy)


def show(arguments: Sequence[str]) -> None:
    """Has Hydra show what ``--help``, ``--cfg``, ``--info`` and others ask for, and runs nothing."""
    ignored = ("-m", "--multirun", "-r", "--run")
    words = [word for word in arguments if word not in ignored and not word.startswith("resume=")]
    # Hydra names the program as it was started, and shells complete only the command of an installed package.
    sys.argv = ["specbench", *(part for word in words for part in spelled_out(word))]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors, and explained says them
    register()
    config_loader_impl.ConfigRepository = Yamls  # ty: ignore[invalid-assignment]  # help copies it for each group
    hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(show)()


class NotComposedError(SpecbenchError):
    """A command that Hydra cannot compose."""


@contextmanager
def composing(overrides: Sequence[str], arguments: Sequence[str]) -> Generator[None]:
    """Inside Hydra composes a command. Raises NotComposedError: what Hydra or OmegaConf finds wrong with it."""
    traced = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        yield
    except (SpecbenchError, BrokenPipeError):
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise NotComposedError(explained(error, overrides)) from error
    except Exception as error:  # Hydra meets some command lines with errors of Python's own
        if traced:
            raise
        problem = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        words = " ".join(arguments)
        raise NotComposedError(f"{words}: cannot be composed ({problem}). HYDRA_FULL_ERROR=1 shows where.") from error


def explained(error: HydraException | OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """What Hydra or OmegaConf found wrong with a command, in their words where ours would not be better."""
    cause = error.__cause__ or error
    group, _, name = (getattr(error, "missing_cfg_file", None) or "").partition("/")
    if isinstance(error, MissingConfigException) and group in (*GROUPS, "exp"):
        choices, key = {*names(group), *(error.options or ())}, "+exp" if group == "exp" else group
        guess = did_you_mean(name, choices).rstrip() or f"python -m specbench list {group} says what each is."
        return f"{key}={name}: no such choice. {guess}\n{group} has {', '.join(sorted(choices))}."
    if isinstance(error, MissingConfigException) and not name:
        return f"--config-name={group}: no such configuration. Leave it out, or give a yaml of --config-dir."
    lines = [line.rstrip() for line in str(error).splitlines() if not line.startswith((" ", "See http"))]
    lines += [] if cause is error else str(cause).splitlines()[:1]
    text = "\n".join(filter(None, lines)).partition(", possible interpolation keys")[0]  # other keys than the wrong one
    named = [override for override in overrides if key_of(override) in text]
    for override in named:
        group, _, name = key_of(override).partition(".")
        if isinstance(cause, (AttributeError, KeyError)) and group in OPEN_GROUPS and name.isidentifier():
            return unknown_key(group, name, overrides)
        if isinstance(cause, ValidationError) and _is_list(key_of(override)):
            text += "\nIt takes a list: write key=[a,b], and 'key=[\"a, b\"]' for a text with special characters."
    return text if named else f"{' '.join(overrides)}: {text}"


def _is_list(key: str) -> bool:
    try:
        return OmegaConf.is_list(OmegaConf.select(OmegaConf.structured(Config), key))
    except OmegaConfBaseException:
        return False


def unknown_key(group: str, key: str, overrides: Sequence[str]) -> str:
    """Why a choice of a group refuses a key, which choices have it, and what to do.

    Args:
        group: such as ``drafter``.
        key: of the group, such as ``layers``.
        overrides: of the command line.
    """
    override = next(one for one in overrides if key_of(one) == f"{group}.{key}")
    given = list(filter(None, values_of(overrides).get(group, "").split(",")))
    chosen = [name for name in given if name in names(group)]
    every = {name: keys(group, name) for name in names(group)}
    having = [name for name in every if key in every[name]]
    lacking = ",".join(name for name in given if name not in having)
    subject = f"{group}={lacking}" if lacking else f"the chosen {group}"
    text = f"{override}: {subject} has no key {key}"
    if chosen and not lacking:
        entries = "and Hydra sets none of its entries that the yaml lacks"
        return f"{override}: {group}.{key} takes entries, {entries}. Add them: {shlex.quote(f'++{override}')}"
    if having:
        return f"{text}. {group}={' and '.join(having)} {'has' if len(having) == 1 else 'have'} it."
    if given and not chosen:
        return f"{text}. Its yaml has all that it takes."
    takes = sorted({member for name in chosen or every for member in every[name]})
    guess = did_you_mean(f"{group}.{key}", [f"{group}.{member}" for member in takes])
    return f"{text}. {guess}It has {', '.join(takes) or 'none'}."
