"""Weights & Biases, offline unless asked. The only importer of wandb."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.errors import ConfigError
from specbench.protocols import Outcome
from specbench.results import TEXT_SCHEMA, TEXTS

MODES = ("offline", "online", "disabled")


def check_settings(mode: str, project: str) -> None:
    """Raises ConfigError for what W&B would refuse only after a run: mode, project's name, online without a key."""
    if mode not in MODES:
        raise ConfigError("tracking.mode", mode, "not a mode", f"Use {', '.join(MODES)}.")
    if set(project) & set("/\\#?%:"):
        raise ConfigError("tracking.project", project, "W&B refuses / \\ # ? % : in names", "Use another name.")
    if mode == "online":
        import wandb

        if not (os.environ.get("WANDB_API_KEY") or wandb.login(prompt=False)):
            raise ConfigError(
                "tracking.mode",
                mode,
                "no W&B key on this machine",
                "Set WANDB_API_KEY or run `wandb login`, or use offline.",
            )


def log_run(
    mode: str,
    *,
    project: str,
    entity: str | None,
    group: str,
    name: str,
    folder: Path,
    config: Mapping[str, Any],
    row: Mapping[str, Any],
    outcome: Outcome,
    texts: int,
) -> None:
    """Logs one finished job: its row as summary, figures, sample texts as a table, its result files as an artifact.

    Args:
        group: the sweep, whose jobs W&B then shows together.
        folder: the job's folder, whose PNG files are logged as images, parquet files and documents as an artifact;
            W&B's own files go to ``folder/wandb``.
    """
    if mode == "disabled":
        return
    import wandb

    settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
    run = wandb.init(
        mode="online" if mode == "online" else "offline",
        project=project,
        entity=entity,
        group=group,
        name=name,
        job_type=str(row["verifier"]),
        dir=str(folder),
        config=dict(config),
        reinit="finish_previous",
        settings=settings,
    )
    with run:
        scalars = {key: value for key, value in row.items() if isinstance(value, int | float | str)}
        run.summary.update(scalars)
        logged: dict[str, Any] = {path.stem: wandb.Image(str(path)) for path in sorted(folder.glob("*.png"))}
        if texts and TEXTS in outcome.tables:
            columns: Any = TEXT_SCHEMA.names
            first: Any = itertools.islice(outcome.tables[TEXTS].rows, texts)
            data: Any = [[text[column] for column in columns] for text in first]
            logged["texts"] = wandb.Table(columns=columns, data=data)
        run.log(logged)
        artifact = wandb.Artifact(f"results-{run.id}", type="results")
        for path in [*sorted(folder.glob("*.parquet")), *(folder / name for name in outcome.documents)]:
            artifact.add_file(str(path), policy="immutable")  # not copied to the home folder
        run.log_artifact(artifact)
