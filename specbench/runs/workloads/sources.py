"""The rows of a workload's file: JSON lines, parquet, or the folder of a data set that is on this disk.

Folders are those that ``datasets.save_to_disk`` writes, snapshots in the cache of the Hugging Face hub, and any other
folder of parquet, arrow or JSON-lines files. pyarrow reads them; the package ``datasets`` is not needed, and nothing is
fetched.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from specbench.core.errors import ConfigError
from specbench.core.machine.files import Origin, shown

MOST_FILES = 20_000  # in a folder that is looked through
SUFFIXES = (".parquet", ".arrow", ".jsonl")  # of a data set's files; the first kind that a folder holds is read
_SHARD = re.compile(r"-\d{5}-of-\d{5}.*")
_SPLIT_REMEDY = "Choose one of them with workload.split=..., or give the file itself."


@dataclass(frozen=True)
class WorkloadRow:
    """One line of a file, or one row of a table.

    Attributes:
        number: from 1; it goes on from file to file of a folder.
        unit: what the number counts, "line" or "row".
        place: as messages name it; a line of a folder with its file.
        value: a mapping by column, unless a line of JSON holds something else.
        origin: says what to do if the row is no good.
    """

    number: int
    unit: str
    place: str
    value: Any
    origin: Origin

    def wrong(self, problem: str, remedy: str | None = None) -> ConfigError:
        """The error to raise for a value of the row; it names the row."""
        return self.origin.wrong(f"{self.place}: {problem}", remedy)

    def unusable(self, problem: str) -> ConfigError:
        """The error to raise for a row without a prompt."""
        return self.origin.wrong(f"{self.place} has no usable prompt ({problem})")


def rows(place: Path, source: Origin, format_: Origin, split: str | None = None) -> Iterator[WorkloadRow]:
    """All rows, in their order, read as they are asked for.

    Args:
        source: says what to do if there is no such file.
        format_: says what to do if a line cannot be read.
        split: which part of a folder, such as "test"; None if it has only one.

    Raises:
        ConfigError: nothing that can be read; a split that is not there, or that has to be chosen.
    """
    files = _files(place, source, split) if place.is_dir() else [place]
    if place.is_file() and split is not None:
        raise source.wrong(f"a file, which has no splits, and workload.split={split}", "Leave workload.split out.")
    if files[0].suffix in (".parquet", ".arrow"):
        number = 0
        for file in files:
            for value in _table_rows(file, source):
                number += 1
                yield WorkloadRow(number, "row", f"row {number}", value, format_)
        return
    before = 0
    for file in files:
        number, of_file, opened = 0, "", source
        if place.is_dir():
            of_file, opened = f" of {file.name}", replace(source, value=file)
        for number, line in opened.lines(file):
            where = f"line {number}{of_file}"
            yield WorkloadRow(before + number, "line", where, format_.parsed(line, where), format_)
        before += number


def _files(folder: Path, source: Origin, split: str | None) -> list[Path]:
    """The files of one split of a folder."""
    inside = list(islice(folder.rglob("*"), MOST_FILES + 1))
    if len(inside) > MOST_FILES:
        raise source.wrong(f"a folder of more than {MOST_FILES:,} files and folders", "Give the data set's own folder.")
    data_files = [file for file in sorted(inside) if file.is_file() and not file.name.startswith((".", "cache-"))]
    kinds = [[file for file in data_files if file.suffix == suffix] for suffix in SUFFIXES]
    files = next((kind for kind in kinds if kind), [])
    if not files:
        raise source.wrong("a folder that holds no parquet, arrow or JSON-lines (.jsonl) files")
    by_split: dict[str, list[Path]] = {}
    for file in files:
        by_split.setdefault(_split_of(file.relative_to(folder)), []).append(file)
    chosen = [name for name in by_split if split is None or name == split or name.endswith(f"/{split}")]
    if len(chosen) == 1:
        return by_split[chosen[0]]
    named = ", ".join(sorted(by_split))
    problem = f"a folder of several splits ({named})" if split is None else f"a folder of the splits {named}"
    if split is not None:
        problem += f", of which {len(chosen)} are called {split!r}"
    raise source.wrong(problem, _SPLIT_REMEDY)


def _split_of(file: Path) -> str:
    """The split that a file is a shard of: test-00000-of-00001.parquet of "test", data-00000-of-00001.arrow of the
    folder that it is in."""
    stem = _SHARD.sub("", file.stem)
    parts = [*file.parent.parts, *([] if stem == "data" and _SHARD.search(file.stem) else [stem])]
    return "/".join(parts) or "data"


def _table_rows(file: Path, source: Origin) -> Iterator[dict[str, Any]]:
    source.check(file)
    batches = _parquet(file) if file.suffix == ".parquet" else _arrow(file)
    while True:
        with source.library_errors(f"{file.name} cannot be read"):
            batch = next(batches, None)
            read = [] if batch is None else batch.to_pylist()
        if batch is None:
            return
        names = batch.schema.names
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise source.wrong(f"{file.name} has two columns called {shown(twice)}", "Rename one of them.")
        yield from read


def _parquet(file: Path) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as opened:
        schema = opened.schema_arrow
        for place, field in enumerate(schema):
            if pa.types.is_floating(field.type) and _is_whole_with_gaps(opened.read([field.name]).column(field.name)):
                schema = schema.set(place, field.with_type(pa.int64()))
        yield from (batch.cast(schema) for batch in opened.iter_batches(1024))


def _is_whole_with_gaps(column: pa.ChunkedArray) -> bool:
    """Whether numbers are whole where there are any: pandas knows no other form for whole numbers with gaps."""
    there = column.drop_null()
    if not 0 < len(there) < len(column):
        return False
    return all(abs(number) < 2**53 and float(number).is_integer() for number in there.to_pylist())


def _arrow(file: Path) -> Iterator[pa.RecordBatch]:
    """``datasets`` writes the stream format; files of other programs may be of the random-access one."""
    with pa.memory_map(str(file)) as opened:
        magic = opened.read(6)
        opened.seek(0)
        if magic == b"ARROW1":
            reader = pa.ipc.open_file(opened)
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            yield from pa.ipc.open_stream(opened)
