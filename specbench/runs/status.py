"""How far a sweep is, in words, from its folder alone: while it runs, after a kill, on another machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specbench.runs.plan import Plan, read_plan
from specbench.runs.state import JobState, Status, read_state


@dataclass(frozen=True)
class SweepStatus:
    """A plan, and what became of each of its jobs, in its order."""

    folder: Path
    plan: Plan
    states: list[JobState]

    @staticmethod
    def of(folder: Path) -> SweepStatus | None:
        """None for a folder without a plan, such as one that only holds collected rows."""
        plan = read_plan(folder)
        if plan is None:
            return None
        states = [read_state(folder / str(job.number)) or JobState(job.id) for job in plan.jobs]
        return SweepStatus(folder, plan, states)

    def count(self, *statuses: Status) -> int:
        """How many jobs are in one of these states."""
        return sum(state.status in statuses for state in self.states)

    @property
    def complete(self) -> bool:
        """Whether nothing is left to run; a job that needs a package that is not here is not waited for."""
        return self.count(Status.DONE, Status.SKIPPED) == len(self.states)

    @property
    def exit_status(self) -> int:
        """0 if every job is done or skipped, one at least is done, and none was measured and found wanting."""
        fine = self.complete and self.count(Status.DONE) and not any(state.verdict for state in self.states)
        return 0 if fine else 1

    def sentence(self) -> str:
        """Such as ``7 of 12 jobs done, 3 running, 2 failed``."""
        parts = [f"{self.count(Status.DONE)} of {len(self.states)} jobs done"]
        for status in (Status.RUNNING, Status.PLANNED, Status.FAILED, Status.DIED, Status.SKIPPED):
            if number := self.count(status):
                parts.append(f"{number} {'not started' if status is Status.PLANNED else status}")
        return ", ".join(parts)

    def partial(self) -> str:
        """The sentence for a report that lacks rows; empty if it has them all."""
        if self.count(Status.DONE) == len(self.states):
            return ""
        return f"This report is of a part of its sweep: {self.sentence()}."

    def problems(self) -> Iterator[tuple[str, str]]:
        """What a user should know of single jobs: (style of the console, sentence)."""
        for job, state in zip(self.plan.jobs, self.states, strict=True):
            name = f"job {job.number} ({job.label})" if len(self.states) > 1 else job.label
            if state.status is Status.FAILED:
                yield "bold red", f"failed: {name}: {state.reason}"
            elif state.status is Status.DIED:
                yield (
                    "bold red",
                    f"died: {name}: process {state.pid} on {state.host} began at {state.started} and is gone",
                )
            elif state.status is Status.SKIPPED:
                yield "yellow", f"skipped: {name}: {state.reason}"
            elif state.verdict:
                yield "bold red", f"failed: {name}: {state.verdict}"
            for warning in state.warnings:
                yield "yellow", f"warning: {name}: {warning}"

    def remedy(self) -> str:
        """How to go on; empty if nothing is left to run."""
        waiting = self.count(Status.PLANNED, Status.FAILED, Status.DIED)
        return f"To run what is missing: python -m specbench resume={shlex.quote(str(self.folder))}" if waiting else ""
