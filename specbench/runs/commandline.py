"""The command line before Hydra sees it: commands of our own, and what Hydra would let pass or say badly."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from specbench.core.conf import CONF
from specbench.core.errors import ConfigError
from specbench.core.machine.files import is_text
from specbench.runs.config import Config
from specbench.runs.launchers import check_named
from specbench.runs.listing import EXPERIMENTS, check_choice, unknown_key
from specbench.runs.overrides import in_quotes, key_of, spelled_out, typed
from specbench.runs.plan import OUTPUTS, find_sweep, read_plan

GROUPS = ("pair", "drafter", "sampler", "verifier", "engine", "workload", "protocol", "tracking", "source")
# Keys of Hydra's that would take jobs out of the folders of their plan.
REFUSED = {
    "hydra.run.dir": "a job's folder is hydra.sweep.dir/<its number>. Set hydra.sweep.dir instead.",
    "hydra.sweep.subdir": "a job's folder is hydra.sweep.dir/<its number>. Leave it out.",
    "hydra/sweeper": "sweeps are planned on disk before they start, which other sweepers do not do. Leave it out.",
    "hydra.output_subdir": "a job's configuration is config.yaml in its folder. Leave it out.",
}


@dataclass(frozen=True)
class Command:
    """A command line, ready for Hydra.

    Attributes:
        resume: the folder of an earlier sweep to go on with.
        asks: whether it shows a configuration or help (``--cfg``, ``--help``), and runs nothing.
    """

    arguments: list[str]
    resume: Path | None
    asks: bool


def prepared(arguments: Sequence[str]) -> Command:
    """What Hydra is to get.

    Raises:
        ConfigError: what Hydra would let pass or answer with a traceback.
    """
    given = list(arguments)
    resume = [each.partition("=")[2] for each in given if each.startswith("resume=")]
    given = [each for each in given if not each.startswith("resume=")]
    check_named(given)
    flags, others = _flags(given)
    own = flags.config_dir is not None or any(each.startswith("hydra.searchpath") for each in given)
    for argument in _overrides(flags, others):
        _check(argument)
        bare, _, value = argument.partition("=")
        if (group := key_of(bare)) in (*GROUPS, EXPERIMENTS) and value and not own:
            check_choice(group, value)
    asks = bool(flags.help or flags.hydra_help or flags.cfg or flags.info or flags.shell_completion)
    folder = None
    if resume:
        if any(key_of(each) == "hydra.sweep.dir" for each in given):
            raise ConfigError("resume", resume[-1], "a folder twice", "Leave out hydra.sweep.dir.")
        exps = [each.partition("=")[2] for each in given if key_of(each) == "exp"]
        folder = find_sweep(resume[-1], exps[-1] if exps else None, "resume")
        plan = read_plan(folder)
        if plan and plan.config_dir and flags.config_dir is None:
            given += ["--config-dir", plan.config_dir]
    elif not asks:
        _check_place(given)
    # Every command is a sweep, which Hydra has to be told where it cannot compose one that it could ask.
    rewritten = [part for each in given for part in _rewritten(each)]
    return Command(rewritten if asks else ["--multirun", *rewritten], folder, asks)


def _flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a command, as Hydra's own parser reads them, and what it does not know.

    Raises:
        ConfigError: a flag that reads a pickle.
    """
    from hydra._internal.utils import get_args_parser

    flags, others = get_args_parser().parse_known_args(list(arguments))
    if flags.experimental_rerun is not None:
        problem = "it reads a pickle, which can run code"
        raise ConfigError("--experimental-rerun", flags.experimental_rerun, problem, "Go on with a sweep by resume=.")
    return flags, others


def _overrides(flags: argparse.Namespace, others: list[str]) -> list[str]:
    """What of a command line sets configuration: no flag of Hydra, and no value of one, as in ``-p drafter``."""
    if flags.hydra_help or flags.shell_completion:
        # Both name the program as it was started, and shells complete only for the command of an installed package.
        sys.argv[0] = "specbench"
    return [] if flags.shell_completion else [*flags.overrides, *others]


def check_encoding(arguments: Sequence[str]) -> None:
    """Refuses paths that Python would hand to libraries in another encoding than they were written in.

    Tokenizers, safetensors and W&B take every path for UTF-8. A locale such as POSIX or Latin-1 reads it otherwise.

    Raises:
        ConfigError: an argument, or a folder that every run uses, is not UTF-8; under such a locale, not ASCII.
    """
    encoding = sys.getfilesystemencoding()
    places = [*arguments, str(CONF), os.environ.get("TMPDIR", ""), os.getcwd()]
    if encoding.lower().replace("-", "") == "utf8":
        folders = [place for place in places if "=" not in place]  # what keys hold is checked by ``prepared``
        if odd := next((place for place in folders if not is_text(place)), None):
            raise ConfigError("path", ascii(odd), "not UTF-8", "Rename it, or work in another folder.")
    elif odd := next((place for place in places if not place.isascii()), None):
        problem = f"outside of ASCII, and Python takes paths for {encoding}, by the locale"
        raise ConfigError("path", ascii(odd), problem, "Set LC_ALL=C.UTF-8, or PYTHONUTF8=1.")


def _rewritten(argument: str) -> list[str]:
    """What an argument is to Hydra. ``hydra.mode=RUN`` is a sweep of one: what an experiment would sweep is left at its
    default."""
    if re.fullmatch(r"\+*hydra\.mode=RUN", argument):
        return ["hydra.sweeper.params=null"]
    return [] if argument in ("-m", "--multirun", "-r", "--run") else spelled_out(argument)


def _check(argument: str) -> None:
    bare, value = key_of(argument), argument.partition("=")[2]
    if not is_text(argument):
        raise ConfigError(bare, ascii(value), "no text that a file could hold", "Use UTF-8.")
    if bare == "exp" and "," in value:
        raise ConfigError(
            "+exp", value, "several experiments at once would lose their own sweeps", "Run one after the other."
        )
    if bare in GROUPS and (argument.startswith("~") or value in ("null", "")):
        problem, remedy = "a run needs one", "See --help for the choices."
        if bare == "source":
            problem, remedy = "not the name of a choice", "Leave it out for none."
        raise ConfigError(bare, value or "nothing", problem, remedy)
    if (bare in GROUPS or bare == "hydra/launcher") and re.match(r"[\[{]|[-+\d.]+$|(?i:true|false|nan|inf)$", value):
        remedy = f"Name one, such as {bare}={_first(value)}, or several with commas between them and no brackets."
        raise ConfigError(bare, value, "not the name of a choice", remedy)
    if bare in REFUSED:
        problem, _, remedy = REFUSED[bare].partition(". ")
        raise ConfigError(bare, value, problem, remedy)
    if "=" in argument or argument.startswith("~"):
        _check_key(bare, argument)


def _first(value: str) -> str:
    return re.split(r"[\[\]{},: ]+", value.strip("[{"))[0] or "..."


def _check_key(key: str, argument: str) -> None:
    """Raises ConfigError for a key that no configuration has, with the nearest that one has."""
    if key.startswith(("-", "hydra")) or not re.fullmatch(r"[\w.@/]+", key):
        return
    first, _, rest = key.partition(".")
    first = first.partition("@")[0]
    known = {each.name: each.default_factory for each in fields(Config)}
    if first in ("exp", "resume"):
        return
    if first not in known:
        near = difflib.get_close_matches(first, [*known, "exp", "resume"], n=1)
        meant = {"exp": "+exp"}.get(near[0], near[0]) if near else ""
        guess = f"Did you mean {meant}{'.' + rest if rest else ''}? " if near else ""
        inside = [f"{name}.{key}" for name, schema in known.items() if key in _fields(schema)]
        guess = f"Did you mean {' or '.join(inside)}? " if inside else guess
        raise ConfigError(key, argument.partition("=")[2], "no such key", f"{guess}See --help for what there is.")
    _check_inner(key, argument, first, rest, known[first])


def _fields(schema: Any) -> list[str]:
    return [each.name for each in fields(schema)] if isinstance(schema, type) and is_dataclass(schema) else []


def _check_inner(key: str, argument: str, group: str, rest: str, schema: Any) -> None:
    """The same for what follows the name of a group, as far as the schema knows what is in it."""
    if not rest or not is_dataclass(schema):
        return
    name, _, further = rest.partition(".")
    known: dict[str, Any] = {each.name: each.default_factory for each in fields(schema)}
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1)
        guess = f"Did you mean {group}.{near[0]}? " if near else ""
        raise ConfigError(key, argument.partition("=")[2], "no such key", f"{guess}{group} has {', '.join(known)}.")
    _check_inner(key, argument, f"{group}.{name}", further, known[name])


def _check_place(arguments: Sequence[str]) -> None:
    chosen = [each for each in arguments if key_of(each) == "hydra.sweep.dir"]
    if chosen and (problem := _unwritable(chosen[-1].partition("=")[2].strip("'\"").split("${")[0])):
        raise ConfigError("hydra.sweep.dir", chosen[-1].partition("=")[2], problem, "Choose another folder.")
    if not chosen and (problem := _unwritable(str(OUTPUTS))):
        raise ConfigError("./outputs", "...", problem, "Run from another folder, or set hydra.sweep.dir.")


def _unwritable(folder: str) -> str | None:
    place = Path(folder)
    try:
        while not place.exists():  # nothing is made here: --help must leave nothing
            place = place.parent
        with tempfile.TemporaryFile(dir=place):
            return None
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    except ValueError as error:  # a NUL
        return f"is no folder ({error})"


def explained(error: HydraException | OmegaConfBaseException, arguments: Sequence[str]) -> str:
    """What Hydra or OmegaConf found wrong with a command, in the words that they have for it and no traceback."""
    if told := _in_need_of_quotes(arguments):
        return told
    parts = [str(error).strip()]
    cause = error.__cause__
    if cause is not None and str(cause).strip() not in parts[0]:
        parts.append(str(cause).strip())
    lines = [line.rstrip() for part in parts for line in part.splitlines() if not _noise(line)]
    text = "\n".join(line for line in lines if line)
    if re.search("rror parsing override|Exception:|mismatched input|extraneous input|no viable alternative", text):
        text += "\nWrite key=value, and quotes around a value with special characters, such as 'key=\"a, b\"'."
    unknown = re.search(r"Key '\w+' is not in struct", text)
    names = re.search(r"Could not override '(\w+)\.(\w+)'", text)
    if unknown and names and names[1] in GROUPS and any(key_of(each) == f"{names[1]}.{names[2]}" for each in arguments):
        return unknown_key(names[1], names[2], arguments)
    if "is not a ListConfig" in text:
        text += "\nIt takes a list: write key=[a,b], and 'key=[\"a, b\"]' for a text with special characters."
    named = any(key_of(each) in text for each in arguments)
    return text if named else f"{' '.join(arguments)}: {text}"


def _in_need_of_quotes(arguments: Sequence[str]) -> str | None:
    """What to write for the first argument whose value is a text that Hydra reads in quotes alone; None without one."""
    parser = OverridesParser.create()

    def readable(argument: str) -> bool:
        try:
            parser.parse_override(argument)
        except HydraException:
            return False
        return True

    for argument in arguments:
        key, equals, value = argument.partition("=")
        structured = value.startswith(("[", "{", "'", '"')) or "," in value  # quotes belong to parts of it
        if key.startswith("-") or not equals or structured or readable(argument):
            continue
        if readable(f"{key}={in_quotes(value)}"):
            return f"{argument}: it has characters that can be read in quotes alone. Write {typed(key, value)}"
    return None


def _noise(line: str) -> bool:
    return bool(re.match(r"\s*(full_key:|object_type=|reference_type=|See https?://hydra)", line))
