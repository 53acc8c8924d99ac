"""Protocols: what a run measures. One a file, chosen by ``protocol=<yaml name>``."""

from typing import TYPE_CHECKING

from specbench.protocols.protocol import MeasurementProtocol, Outcome, ParquetTable, RunContext

if TYPE_CHECKING:
    from specbench.protocols.model_context import ModelContext

__all__ = ["MeasurementProtocol", "ModelContext", "Outcome", "ParquetTable", "RunContext"]


def __getattr__(name: str) -> object:
    """Imports ModelContext when it is first used: transformers comes with it, and most protocols need no model.

    Table is ParquetTable's name in 0.2.0; OwnConditions and Prechecked are 0.2.0's names for what a MeasurementProtocol
    may have. They end with 0.3.0.
    """
    if name in ("OwnConditions", "Prechecked"):
        return MeasurementProtocol
    if name == "Table":
        return ParquetTable
    if name != "ModelContext":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from specbench.protocols.model_context import ModelContext

    return ModelContext
