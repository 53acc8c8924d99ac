"""W&B in a process of its own, started by tracking.py: a job as JSON on standard input. The only importer of wandb.

It imports nothing else of specbench, so that it starts in a second. Where it fails, standard output says why, and the
status is 1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


class NotTrackedError(Exception):
    """A reason that is told as it is."""


def log(job: dict[str, Any]) -> None:
    """Logs one job, and waits until W&B has written or sent all of it.

    Raises:
        NotTrackedError: W&B said nothing, but its log has an error: a full disk ends a run's file in the middle.
    """
    import wandb

    settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
    with wandb.init(**job["init"], settings=settings) as run:
        run.summary.update(job["summary"])
        logged: dict[str, Any] = {name: wandb.Image(path) for name, path in job["images"].items()}
        if job["texts"]:
            logged["texts"] = wandb.Table(columns=job["columns"], data=job["texts"])
        run.log(logged)
        artifact = wandb.Artifact(f"results-{run.id}", type="results")
        for path in job["files"]:
            artifact.add_file(path, policy="immutable", skip_cache=True)  # no copies elsewhere
        run.log_artifact(artifact)
        own_log = Path(run.settings.log_internal)
    wandb.teardown()  # waits for its service, which closes the run's file
    for line in own_log.read_text(errors="replace").splitlines() if own_log.is_file() else ():
        if '"level":"ERROR"' in line:
            raise NotTrackedError(json.loads(line)["msg"])


def login(_job: dict[str, Any]) -> None:
    """Asks whether there is a key. Raises NotTrackedError if there is none."""
    import wandb

    if not wandb.login(prompt=False):
        raise NotTrackedError("no W&B key on this machine")


def main() -> None:
    """Does what standard input asks for."""
    with os.fdopen(os.dup(1), "w", errors="replace") as out:  # W&B's service, which may live longer, inherits no copy
        os.dup2(2, 1)
        job = json.load(sys.stdin)
        sys.argv = job.get("argv", sys.argv)  # W&B notes a run's command
        tempfile.tempdir = job["scratch"]  # before wandb makes its folders; tracking.py removes it, also after a crash
        try:
            {"log": log, "login": login}[job["task"]](job)
        except NotTrackedError as error:
            out.write(str(error))
        except (Exception, SystemExit) as error:
            out.write(f"{type(error).__name__}: {''.join(str(error).strip().splitlines()[:1])}")
        else:
            return
    sys.exit(1)


if __name__ == "__main__":
    main()
