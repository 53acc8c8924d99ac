"""What a command line can choose: the commands, and the choices of each group of conf with a line each."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Sequence

from omegaconf import OmegaConf

from specbench.core.conf import CONF
from specbench.core.errors import ConfigError
from specbench.runs.choices import names
from specbench.runs.overrides import choice_of, key_of

EXPERIMENTS = "exp"
_WIDTH = 150
COMMANDS = {
    "+exp=NAME [key=value ...]": "runs an experiment: a sweep with a report",
    "[key=value ...]": "runs one job, or a sweep if a key has several values: gamma=1,2,4",
    "resume=latest": "goes on with a sweep that was stopped; resume=FOLDER with another",
    "report [FOLDER] [--publish]": "how far a sweep is, its table and its report; --publish saves it in W&B",
    "list [GROUP]": "the choices of all groups, or of one",
    "pages [FOLDER ...] [--to FOLDER]": "makes pages of many reports",
    "paper RUN... --out FOLDER": "makes the tables, figures and numbers of a LaTeX document",
    "convert FILE --out FOLDER": "makes a checkpoint folder of a model in GGUF",
    "drafter=layer_skip --help": "the keys of that drafter; so for every choice",
    "--cfg job -p drafter": "the same keys and nothing else",
    "--hydra-help": "flags of Hydra, completion of the shell among them",
    "--version": "versions of specbench and of what numbers depend on",
}
_GROUPS = {
    "exp": "experiments, each with the question that it answers",
    "protocol": "what a run measures",
    "verifier": "the code that accepts and rejects drafted tokens",
    "drafter": "what proposes tokens",
    "pair": "the target and the draft model",
    "workload": "the prompts",
    "sampler": "how both models sample",
    "engine": "how a step is run",
    "source": "the engine under test, which texts are sampled from",
    "tracking": "where runs are logged",
}


def overview() -> str:
    """What ``--help`` says before the keys of the configuration."""
    width = max(map(len, COMMANDS))
    commands = [f"  {command:{width}}  {what}" for command, what in COMMANDS.items()]
    return "\n".join(["python -m specbench", *commands, "", listing()])


def listing(group: str | None = None) -> str:
    """The choices of a group with a line each; of all groups if None.

    Raises:
        ConfigError: no such group.
    """
    if group is not None and group not in _GROUPS:
        raise ConfigError(
            "list", group, "no such group", f"{did_you_mean(group, _GROUPS)}There are {_joined(_GROUPS)}."
        )
    return "\n\n".join(_of_group(each) for each in ([group] if group else _GROUPS))


def _of_group(group: str) -> str:
    choices = names(group)
    width = max(map(len, choices), default=0)
    lines = [_cut(f"  {name:{width}}  {described(group, name)}") for name in choices]
    return "\n".join([f"{'+' if group == EXPERIMENTS else ''}{group}=  {_GROUPS[group]}", *lines])


def described(group: str, name: str) -> str:
    """The first sentence of a choice's yaml; of an experiment its question."""
    comments = re.findall(r"^# ?(.*)$", (CONF / group / f"{name}.yaml").read_text(), flags=re.MULTILINE)
    return next((each for each in comments if not each.startswith(("@package", "python -m"))), "")


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4].rpartition(' ')[0]} ..."


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """``Did you mean block? ``, or nothing if nothing is near."""
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"Did you mean {near[0]}? " if near else ""


def check_choice(group: str, given: str) -> None:
    """Refuses a name that no yaml of a group has, in two lines.

    Args:
        given: a name, or several with commas between them. What is more than names is Hydra's to read.

    Raises:
        ConfigError: with the nearest name, and all names.
    """
    known = names(group)
    for name in given.split(",") if re.fullmatch(r"[\w/, -]+", given) else ():
        choice, _ = choice_of(group, name.strip())
        if choice and choice not in known:
            key = "+exp" if group == EXPERIMENTS else group
            guess = did_you_mean(choice, known).rstrip() or f"python -m specbench list {group} says what each is."
            raise ConfigError(key, name.strip(), "no such choice", f"{guess}\n{group} has {_joined(known)}.")


def unknown_key(group: str, key: str, arguments: Sequence[str]) -> str:
    """Why a choice of a group refuses a key, which choices have it, and what to do.

    Args:
        group: such as ``drafter``.
        key: of the group, such as ``layers``.
        arguments: the command line.
    """
    override = next(each for each in arguments if key_of(each) == f"{group}.{key}")
    given = [each.partition("=")[2] for each in arguments if key_of(each) == group]
    chosen = [name for name in given[-1].split(",") if name in names(group)] if given else []
    having = [name for name in names(group) if key in _keys(group, name)]
    lacking = [name for name in chosen if name not in having]
    subject = f"{group}={','.join(lacking)}" if lacking else f"the chosen {group}"
    text = f"{override}: {subject} has no key {key}"
    mixed = [name for name in chosen if name in having]
    if mixed:
        rest = [each for each in arguments if each != override and key_of(each) != group]
        more = shlex.join(["resume=latest", f"{group}={','.join(mixed)}", override, *rest])
        return (
            f"{text}, which {group}={','.join(mixed)} has.\nRun {subject} first, without {override}. "
            f"Then add the others to its sweep: python -m specbench {more}"
        )
    if having:
        return f"{text}. {group}={' and '.join(having)} {'has' if len(having) == 1 else 'have'} it."
    known = sorted({each for name in chosen or names(group) for each in _keys(group, name)})
    return f"{text}. {did_you_mean(f'{group}.{key}', [f'{group}.{each}' for each in known])}It has {_joined(known)}."


def _keys(group: str, name: str) -> list[str]:
    node = OmegaConf.load(CONF / group / f"{name}.yaml")
    return [str(key) for key in node if not str(key).startswith("_")]


def check_command(word: str) -> None:
    """Refuses a first argument that is a word by itself, which is neither a command nor key=value.

    Raises:
        ConfigError: with the nearest command.
    """
    if not re.fullmatch(r"[A-Za-z_][\w-]*", word):
        return
    commands = [name for name in (each.split()[0] for each in COMMANDS) if re.match("[a-z]+$|resume=", name)]
    guess = "Did you mean --help? " if word == "help" else did_you_mean(word, commands)
    if word == "run":
        guess = "A run needs no word: python -m specbench +exp=smoke. "
    if word in _GROUPS:
        guess = f"Did you mean list {word}, or {word}=NAME? "
    raise ConfigError("command", word, "no such command", f"{guess}There are {_joined(commands)}; see --help.")


def _joined(words: Iterable[str]) -> str:
    return ", ".join(words)
