"""``python -m specbench``: the command line. ``--help`` lists its commands and what can be chosen."""

import importlib.metadata
import os
import pkgutil
import platform
import sys
from pathlib import Path

from specbench import __version__
from specbench.core.errors import SpecbenchError
from specbench.core.machine import ranks
from specbench.core.machine.progress import console, say
from specbench.core.machine.signals import Interrupted, interruptible
from specbench.runs import listing
from specbench.runs.commandline import check_encoding, composing, parse_command, show
from specbench.runs.sweep import JobsRefused, Planner

# The function behind each command; its module is imported when it is called.
COMMANDS = {
    "report": "specbench.runs.ending:report",
    "list": "specbench.runs.listing:command",
    "pages": "specbench.runs.collection:command",
    "paper": "specbench.runs.paper:paper",
    "convert": "specbench.extras.gguf.command:convert",
}


def versions() -> str:
    """``python -m specbench --version``: of what numbers depend on."""
    packages = {"PyTorch": "torch", "Triton": "triton", "transformers": "transformers", "Hydra": "hydra-core"}
    versions = [f"{name} {_version(package)}" for name, package in packages.items()]
    return f"specbench {__version__} ({', '.join(versions)}, Python {platform.python_version()})"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def run(arguments: list[str]) -> int:
    """Runs a command line; returns its exit status."""
    if arguments:
        listing.check_command(arguments[0])
    command, sweep = parse_command(arguments), None
    try:
        with composing(command.overrides, arguments):
            if command.shows:
                if arguments in (["-h"], ["--help"]):
                    print(f"{listing.overview()}\n")
                show(arguments)
                return 0
            planner = Planner(command)
            sweep = planner.plan()
            return end(sweep.folder, planner.launch(sweep))
    except Interrupted as error:
        say(f"interrupted ({error})", style="bold red")
        if sweep is not None:
            end(sweep.folder, interrupted=True)
        return error.status
    except JobsRefused as error:
        say(str(error), style="bold red")
        return 1


def end(folder: Path, launch_error: str | None = None, interrupted: bool = False) -> int:
    """Says what came of a sweep; returns the exit status."""
    if not ranks.is_rank0():
        return 1 if launch_error else 0
    from specbench.runs.ending import tell

    status = tell(folder, just_ran=True, interrupted=interrupted)
    if launch_error:
        say(f"the launcher gave up: {launch_error}", style="bold red")
    return 1 if launch_error else status


def main() -> None:
    arguments = sys.argv[1:]
    if not ranks.is_rank0():  # one process of a parallel run speaks
        console.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with interruptible():
        try:
            if arguments == ["--version"]:
                print(versions())
                sys.exit(0)
            command = COMMANDS.get(arguments[0]) if arguments else None
            try:
                check_encoding(arguments)
                status = pkgutil.resolve_name(command)(arguments[1:]) if command else run(arguments)
            except SpecbenchError as error:
                say(str(error), style="bold red")
                status = 2
            if ranks.size() > 1:
                _leave(status)
            sys.exit(status)
        except Interrupted as error:  # before or after the jobs
            sys.exit(error.status)
        except BrokenPipeError:  # the reader of the output has gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(128 + 13)  # as if SIGPIPE had ended it


def _leave(status: int) -> None:
    """Ends this process at once. What PyTorch would tidy up waits for other processes, which may have gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
