"""What a command line can choose: the commands, and the choices of each group of conf with a line each."""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from specbench.core.conf import CONF
from specbench.core.errors import ConfigError
from specbench.runs.checks import check_config_dir, did_you_mean
from specbench.runs.choices import names
from specbench.runs.config import GROUPS

EXPERIMENTS = "exp"
_WIDTH = 150
COMMANDS = {
    "+exp=NAME [key=value ...]": "runs an experiment: a sweep with a report",
    "[key=value ...]": "runs one job, or a sweep if a key has several values: gamma=1,2,4",
    "resume=latest": "goes on with a sweep that was stopped; resume=FOLDER with another",
    "report [FOLDER] [--publish]": "how far a sweep is, its table and its report; --publish saves it in W&B",
    "list [GROUP]": "the choices of all groups, or of one; --config-dir FOLDER adds yours",
    "pages [FOLDER ...] [--to FOLDER]": "makes pages of many reports",
    "paper RUN... --out FOLDER": "makes the tables, figures and numbers of a LaTeX document",
    "convert FILE --out FOLDER": "makes a checkpoint folder of a model in GGUF",
    "drafter=layer_skip --help": "the keys of that drafter; so for every choice",
    "--cfg job -p drafter": "the same keys and nothing else",
    "--hydra-help": "flags of Hydra, completion of the shell among them",
    "--version": "versions of specbench and of what numbers depend on",
}
_GROUPS = {EXPERIMENTS: "experiments, each with the question that it answers", **GROUPS}


def command(arguments: Sequence[str]) -> int:
    """``python -m specbench list [GROUP]``; returns the exit status. Raises ConfigError for no such group or folder."""
    about = "The choices of all groups of the configuration, or of one."
    parser = argparse.ArgumentParser(prog="python -m specbench list", description=about)
    parser.add_argument("group", metavar="GROUP", nargs="?")
    parser.add_argument("--config-dir", "-cd", metavar="FOLDER", help="of your own configurations, as for a run")
    command_line = parser.parse_args(arguments)
    config_dir = check_config_dir(command_line.config_dir)
    print(listing(command_line.group, None if config_dir is None else Path(config_dir)))
    return 0


def overview() -> str:
    """What ``--help`` says before the keys of the configuration."""
    width = max(map(len, COMMANDS))
    commands = [f"  {command:{width}}  {what}" for command, what in COMMANDS.items()]
    return "\n".join(["python -m specbench", *commands, "", listing()])


def listing(group: str | None = None, config_dir: Path | None = None) -> str:
    """The choices of a group with a line each; of all groups if None. Raises ConfigError if there is no such group.

    Args:
        config_dir: the user's own configurations, whose yamls take the place of those of the same name.
    """
    if group is not None and group not in _GROUPS:
        raise ConfigError(
            "list", group, "no such group", f"{did_you_mean(group, _GROUPS)}There are {', '.join(_GROUPS)}."
        )
    return "\n\n".join(_of_group(name, config_dir) for name in ([group] if group else _GROUPS))


def _of_group(group: str, config_dir: Path | None) -> str:
    places = [CONF] if config_dir is None else [CONF, config_dir]
    choices = dict(sorted({name: conf for conf in places for name in names(group, conf)}.items()))
    width = max(map(len, choices), default=0)
    room = _WIDTH - width - 4
    about = {name: shorten(described(group, name, conf), room, placeholder=" ...") for name, conf in choices.items()}
    lines = [f"  {name:{width}}  {text}" for name, text in about.items()]
    return "\n".join([f"{'+' if group == EXPERIMENTS else ''}{group}=  {_GROUPS[group]}", *lines])


def described(group: str, name: str, conf: Path = CONF) -> str:
    """The first sentence of a choice's yaml; of an experiment its question."""
    text = (conf / group / f"{name}.yaml").read_text("utf-8", "replace")
    comments = re.findall(r"^# ?(.*)$", text, flags=re.MULTILINE)
    return next((comment for comment in comments if not comment.startswith(("@package", "python -m"))), "")


def check_command(word: str) -> None:
    """Refuses a first argument that is a word by itself, which is neither a command nor key=value.

    Raises:
        ConfigError: with the nearest command.
    """
    if not re.fullmatch(r"[A-Za-z_][\w-]*", word):
        return
    commands = [name for name in (line.split()[0] for line in COMMANDS) if re.match("[a-z]+$|resume=", name)]
    guess = "Did you mean --help? " if word == "help" else did_you_mean(word, commands)
    if word == "run":
        guess = "A run needs no word: python -m specbench +exp=smoke. "
    if word in _GROUPS:
        guess = f"Did you mean list {word}, or {word}=NAME? "
    raise ConfigError("command", word, "no such command", f"{guess}There are {', '.join(commands)}; see --help.")
