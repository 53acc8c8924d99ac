"""Protocols: what a run measures. One a file, chosen by ``protocol=<yaml name>``."""

from typing import TYPE_CHECKING

from specbench.protocols.protocol import MeasurementProtocol, Outcome, RunContext, Table

if TYPE_CHECKING:
    from specbench.protocols.model_context import ModelContext

__all__ = ["MeasurementProtocol", "ModelContext", "Outcome", "RunContext", "Table"]


def __getattr__(name: str) -> object:
    """Imports ModelContext when it is first used: transformers comes with it, and most protocols need no model.

    OwnConditions and Prechecked are names of 0.2.0 for what a MeasurementProtocol may have; they end with 0.3.0.
    """
    if name in ("OwnConditions", "Prechecked"):
        return MeasurementProtocol
    if name != "ModelContext":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from specbench.protocols.model_context import ModelContext

    return ModelContext
