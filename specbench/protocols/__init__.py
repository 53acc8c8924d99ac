"""Protocols: what a run measures. One a file, chosen by ``protocol=<yaml name>``."""

from specbench.protocols.base import (
    MeasurementProtocol,
    ModelContext,
    Outcome,
    OwnConditions,
    Prechecked,
    RunContext,
    Table,
)

__all__ = ["MeasurementProtocol", "ModelContext", "Outcome", "OwnConditions", "Prechecked", "RunContext", "Table"]
