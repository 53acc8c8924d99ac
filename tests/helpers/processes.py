"""Processes forked from the test process, which have everything imported."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


def apart(module: str, arguments: Sequence[str], environment: Mapping[str, str], anew: bool = False) -> None:
    """Runs ``_main`` of a module outside of this process: ``python -m module arguments`` in the root of the tree.

    Forked, it has everything imported. With a GPU a new process is started: CUDA does not live on in a fork.

    Raises:
        AssertionError: it failed, with all that it printed.
    """
    import torch

    if anew or torch.cuda.is_available():
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as printed:
        _, status = os.waitpid(fork(printed.fileno(), lambda: _in_child(module, arguments, environment)), 0)
        printed.seek(0)
        assert status == 0, printed.read()


def _in_child(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """What a new process would have: its environment, warnings and logging; and no checks of shapes."""
    os.chdir(ROOT)
    os.environ.clear()
    os.environ.update(environment)
    sys.path += environment["PYTHONPATH"].split(os.pathsep)
    sys.argv = [module, *arguments]
    warnings.simplefilter("ignore")
    logging.root.handlers.clear()

    import jaxtyping
    import torch

    jaxtyping.config.update("jaxtyping_disable", True)
    torch.set_num_threads(1)
    for loaded in [*sys.modules.values()]:  # with more threads OpenMP waits for those of the parent, which are not here
        if hasattr(loaded, "PYTORCH_THREADS"):
            loaded.PYTORCH_THREADS = 1  # ty: ignore[unresolved-attribute]
    importlib.import_module(module)._main(*arguments)


def fork(out: int, work: Callable[[], object]) -> int:
    """Forks a process that does its work, prints to a file descriptor, and ends. Returns its id.

    Its exit status is 0, or the code of a SystemExit. After any other exception it prints the traceback, and the status
    is 70.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside the thread that speaks to xdist
        pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        work()
        status = 0
    except SystemExit as error:
        status = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
