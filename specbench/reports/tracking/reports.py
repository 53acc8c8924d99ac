"""A sweep's report in W&B: ``report.wandb.json`` in its folder, and on W&B's server if tracking is online.

Made with wandb-workspaces (the extra ``wandb-workspaces``), in W&B's own process.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specbench.core.errors import TrackingError
from specbench.reports.tracking.jobs import environment
from specbench.reports.tracking.panels import HISTOGRAMS
from specbench.reports.tracking.process import LIMITS, Process
from specbench.reports.tracking.settings import WandbWorkspace
from specbench.reports.tracking.sweeps import SWEEP

REPORT = "report.wandb.json"
POINTS = ("speedup", "acceptance_length")  # a point a run, by a key that the sweep varies
SPEEDS = ("acceptance_length", "tokens_per_second", "speedup")  # bars, a run each, of summaries that have them


def write_report(
    described: Mapping[str, Any],
    sweep: Path,
    workspace: WandbWorkspace,
    varied: Mapping[str, Sequence[str]] | None = None,
) -> Path | None:
    """Writes ``report.wandb.json`` into the folder ``report`` of a sweep, and saves it on the server if online.

    Beside what the report says it shows the group's own panels: the figures and histograms that its jobs have logged.

    Args:
        described: what reports/wandb.py makes of a report.
        sweep: the sweep's folder.
        varied: keys of the configuration in which its jobs differ; those of numbers get panels of speed by the key.

    Returns:
        the file; None if tracking is disabled.

    Raises:
        TrackingError: and nothing else; what failed, or that wandb-workspaces is missing. A report that could not be
            saved online is there as a file.
    """
    if workspace.mode == "disabled":
        return None
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise TrackingError("it needs wandb-workspaces; pip install 'specbench[wandb-workspaces]'")
    folder = sweep / "report"
    try:
        folder.mkdir(exist_ok=True)
        path = folder.resolve() / REPORT
        first = {
            "task": "report",
            "report": described,
            "kind": SWEEP,
            "panels": _panels(sweep, varied or {}),
            "path": str(path),
            "save": workspace.mode == "online",
        }
        process = Process(first, folder, environment(workspace.mode, sweep / "wandb"))
        process.end(None, LIMITS[workspace.mode])
    except OSError as error:
        raise TrackingError(f"{type(error).__name__}: {error}") from error
    return path


def _panels(sweep: Path, varied: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What the jobs of a sweep have logged."""
    media = [*(f"charts/{name}" for name in HISTOGRAMS), *sorted({path.stem for path in sweep.glob("[0-9]*/*.png")})]
    points = [{"x": key, "y": name} for key, values in varied.items() if _are_numbers(values) for name in POINTS]
    return {"points": points, "bars": SPEEDS, "media": media}


def _are_numbers(values: Sequence[str]) -> bool:
    try:
        return bool([float(value) for value in values])
    except ValueError:
        return False
