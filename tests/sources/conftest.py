"""Connections of a test's sources end with the test."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from specbench.sources.served import ServedSource


@pytest.fixture(autouse=True)
def close(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Closes the sources of a test, and with them their connections."""
    from specbench.sources.served import ServedSource

    sources: list[ServedSource] = []
    build = ServedSource.__init__

    def noting(self: ServedSource, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        sources.append(self)

    monkeypatch.setattr(ServedSource, "__init__", noting)
    yield
    for source in sources:
        source.close()
