"""Errors a user can act on: each names what was wrong, where, and what to do about it."""

import copyreg
from typing import Any


class SpecbenchError(Exception):
    """Base of every error that specbench raises on purpose; shown to the user without a traceback.

    Its message can always be printed and written: halves of surrogate pairs, which a path may hold, are escaped.
    """

    def __init__(self, message: str):
        super().__init__(message.encode(errors="backslashreplace").decode())

    def __reduce__(self) -> tuple[Any, ...]:
        """By its message and attributes: joblib and Ray carry errors from one process to another as pickles.

        An exception's own way calls the class with the message alone, and subclasses ask for other arguments.
        """
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # ty: ignore[missing-attribute]


def message_of(error: BaseException) -> str:
    """The message of an error, with its type in front if it is not one of specbench's own."""
    return str(error) if isinstance(error, SpecbenchError) else f"{type(error).__name__}: {error}"


class ConfigError(SpecbenchError):
    """A configuration value that cannot work.

    Args:
        key: the configuration key, as it is written on the command line (``sampler.top_p``).
    """

    def __init__(self, key: str, value: object, problem: str, remedy: str):
        super().__init__(f"{key}={value}: {problem}. {remedy}")
        self.key, self.value, self.problem, self.remedy = key, value, problem, remedy


class OutageError(ConfigError):
    """An engine that stopped answering, or fails by itself. The job fails as well, so that it can be resumed."""


class NotInstalledError(ConfigError):
    """A choice that needs an optional package; a sweep goes on without it and does not fail for it."""


class ModelError(SpecbenchError):
    """A checkpoint that cannot be used, or a model that returned logits no rule can sample from."""


class ArgumentError(SpecbenchError, ValueError):
    """An argument of a library function (a verifier, a kernel) that does not fit; the message names the argument."""


class TrackingError(SpecbenchError):
    """W&B could not log a job, or not all of it. The job itself is done, so that callers warn and go on."""
