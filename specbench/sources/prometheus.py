"""Counters in the text that servers offer to Prometheus at /metrics."""

import math
import re
from collections.abc import Mapping
from contextlib import suppress

from specbench.core.errors import ConfigError
from specbench.sources.http import Server, StatusError

KNOWN = ("drafted", "accepted", "steps")
_LABELS = r'\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\}'  # whose quoted values may hold a "}"
_SAMPLE = re.compile(rf"^([A-Za-z_:][\w:]*)(?:{_LABELS})?[ \t]+(\S+)", re.MULTILINE)


class Counters:
    """Reads counters by their names in a server's metrics.

    Args:
        names: of the counters, by what they count ("drafted", "accepted", "steps"); None or empty reads nothing.

    Raises:
        ConfigError: a name for something else.
    """

    def __init__(self, names: Mapping[str, str] | None):
        self.names = dict(names or {})
        for name, value in self.names.items():
            if name not in KNOWN:
                raise ConfigError(f"source.counters.{name}", value, "not known", f"Use {', '.join(KNOWN)}.")

    def read(self, server: Server, speculates: bool) -> dict[str, float]:
        """Their values, summed over labels.

        Args:
            speculates: whether a counter that is missing is an error; others have no counters of speculation.

        Raises:
            ConfigError: the server offers no metrics, or has no such counter.
        """
        if not self.names:
            return {}
        try:
            metrics = totals(server.text("/metrics"))
        except StatusError as error:
            remedy = "Start it with metrics (llama-server: --metrics), or use source.counters=null."
            raise server.error(f"it offers no metrics (status {error.status})", remedy) from error
        return {what: self._value(what, metrics, server, speculates) for what in self.names}

    def _value(self, what: str, metrics: Mapping[str, float], server: Server, speculates: bool) -> float:
        name = self.names[what]
        if name in metrics or not speculates:
            return metrics.get(name, 0.0)
        near = [name for name in sorted(metrics) if re.search("draft|accept|spec", name)]
        problem = f"{server.url}/metrics has no such counter; the server may not speculate, or be of another version"
        remedy = f"It has {', '.join(near[:6]) or 'none like it'}; source.counters=null reads none."
        raise ConfigError(f"source.counters.{what}", name, problem, remedy)


def totals(text: str) -> dict[str, float]:
    """Returns the samples of a text in Prometheus' format by name, summed over labels; skips what it cannot read."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        with suppress(ValueError):
            if math.isfinite(number := float(value)):
                sums[name] = sums.get(name, 0.0) + number
    return sums
