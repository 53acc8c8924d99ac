"""Reads a W&B run back from the file that W&B writes of it, whether it was offline or not."""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 2**15


def payloads(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format in blocks of 32 KiB, after a header of 7 bytes."""
    data, place, parts = path.read_bytes(), 7, []
    assert struct.unpack_from("<4sH", data) == (b":W&B", 0xBEE1)
    while place < len(data):
        if BLOCK - place % BLOCK < 7:  # too short for a header: filled with zeros
            place += BLOCK - place % BLOCK
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, place)
        part = data[place + 7 : place + 7 + length]
        assert zlib.crc32(part, zlib.crc32(bytes([kind]))) == crc, f"damaged at byte {place}"
        parts.append(part)
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []
    assert not parts


@dataclass
class Tracked:
    """One W&B run as its file tells it.

    Attributes:
        config: nested keys joined by dots.
        history: the last value of each key; what it is made of by nested key.
        lines: all of its history, a dict a line, plain values alone.
        axes: what a metric is drawn against.
        exit_code: None if the run has no end.
    """

    files: Path
    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    history: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, str] = field(default_factory=dict)
    artifacts: list[Any] = field(default_factory=list)
    exit_code: int | None = None

    def table(self, key: str) -> dict[str, Any]:
        """A table as it was logged: columns and data."""
        return json.loads((self.files / self.history[key]["path"]).read_text())


def read_run(path: Path) -> Tracked:
    """Reads the .wandb file of a run."""
    from wandb.proto.wandb_internal_pb2 import Record

    tracked = Tracked(path.parent / "files")
    for payload in payloads(path):
        record = Record.FromString(payload)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            tracked.run = record.run
            tracked.config |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        elif kind == "config":
            tracked.config |= {
                ".".join(item.nested_key or [item.key]): json.loads(item.value_json) for item in record.config.update
            }
        elif kind == "summary":
            tracked.summary |= {item.key: json.loads(item.value_json) for item in record.summary.update if item.key}
        elif kind == "history":
            tracked.lines.append({})
            for item in record.history.item:
                name, *inner = item.nested_key or [item.key]
                value = json.loads(item.value_json)
                tracked.history.setdefault(name, {})[".".join(inner)] = value
                tracked.lines[-1] |= {} if inner else {name: value}
        elif kind == "metric":
            tracked.axes[record.metric.name] = record.metric.step_metric
        elif kind == "artifact":
            tracked.artifacts.append(record.artifact)
        elif kind == "exit":
            tracked.exit_code = record.exit.exit_code
    return tracked
