"""A paper's folder: what is in it, and how it is written again without harm to what others put there."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from specbench.core.errors import ConfigError
from specbench.core.machine.disk import beside, read_json, write_json, writing
from specbench.reports.latex import document
from specbench.reports.latex.document import fill
from specbench.reports.latex.numbers import Numbers
from specbench.reports.model import Picture, Report
from specbench.reports.plots.style import Page, drawn_for, style

MANIFEST = "specbench.json"
KEPT = "main.tex"  # an example, which its reader may change


def pages(column: float, wide: float, font: str) -> dict[str, Page]:
    """What figures are drawn for, by the end of their files' names: one column, and the width of the text.

    Args:
        column, wide: inches.
        font: a family that matplotlib finds.
    """
    mathtext = {"DejaVu Sans": "dejavusans", "DejaVu Serif": "dejavuserif"}.get(font, "stix")
    return {"column": Page(column, font, mathtext, filled=True), "wide": Page(wide, font, mathtext, filled=True)}


def files(reports: Mapping[str, Sequence[Report]], pages: Mapping[str, Page], version: str) -> dict[str, bytes]:
    """All files of a paper by their paths in its folder; the same reports give the same bytes.

    Args:
        reports: the same ones for each page, whose figures were drawn for it.
        pages: what figures were drawn for, by the end of their files' names.
        version: of specbench.
    """
    numbers, files = Numbers(), dict[str, str | bytes]()
    first = next(iter(reports.values()))
    for report in first:
        name = report.name
        numbers.headlines(name, report.headlines)
        of_float = {"experiment": name, "numbers": numbers, "remark": document.remark(report)}
        for table in report.tables:
            files[f"{name}/table-{table.name}.tex"] = fill("table.tex", table=table, **of_float)
        for picture in report.pictures:
            files[f"{name}/figure-{picture.name}.tex"] = fill("figure.tex", picture=picture, **of_float)
    for end, page in pages.items():
        for report in reports[end]:
            for picture in report.pictures:
                files[f"{report.name}/{picture.name}-{end}.pdf"] = _pdf(picture, page)
    rules = [rule for report in first for rule in report.rules]
    files["numbers.tex"] = document.MARK + numbers.render()
    files["specbench.tex"] = fill("specbench.tex", mark=document.MARK.rstrip())
    files["refs.bib"] = document.bibliography(rules, version)
    files[KEPT] = document.main(first, pages)
    return {path: content.encode() if isinstance(content, str) else content for path, content in files.items()}


def write(files: Mapping[str, bytes], out: Path) -> list[str]:
    """Writes a paper's files into a folder that is new, empty, or a paper's that was written before.

    Files of an earlier time that are no longer part of it are removed. An example that was changed is kept.

    Returns:
        The files that were kept as they are.

    Raises:
        ConfigError: the folder holds something else, or a file that was changed since it was written.
        WriteError: it cannot be written.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError("--out", out, "is not a folder", "Name another one.")
    earlier = _written(out)
    if earlier is None and out.is_dir() and any(out.iterdir()):
        contents = ", ".join(sorted(entry.name for entry in out.iterdir())[:3])
        remedy = "Name a folder that is not there yet, such as paper/specbench."
        raise ConfigError("--out", out, f"holds what specbench paper did not write ({contents})", remedy)
    earlier = earlier or {}
    kept = [KEPT] if KEPT in earlier and _changed(out, KEPT, earlier) else []
    foreign = [path for path in sorted({*files, *earlier} - set(kept)) if _changed(out, path, earlier)]
    if foreign:
        remedy = "Move your changes to a file of your own, and remove this one."
        raise ConfigError("--out", out, f"{foreign[0]} is not as specbench paper wrote it", remedy)
    digests = {path: earlier[path] if path in kept else [_digest(content)] for path, content in files.items()}
    both = {path: earlier.get(path, []) + digests.get(path, []) for path in {**earlier, **digests}}
    with writing(out, "Free space there or make it writable, or name another folder by --out."):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / MANIFEST, {"files": both})  # if this is killed, files are as they were or as they are to be
        for path, content in files.items():
            if path not in kept:
                (out / path).parent.mkdir(exist_ok=True)
                with beside(out / path) as temporary:
                    temporary.write_bytes(content)
        for path in set(earlier) - set(files):
            (out / path).unlink(missing_ok=True)
        write_json(out / MANIFEST, {"files": digests})
    return kept


def _written(out: Path) -> dict[str, list[str]] | None:
    """The files that were written here before, with the digests that they may have; None if nothing says so."""
    try:
        files = {
            str(path): [str(digest) for digest in digests]
            for path, digests in read_json(out / MANIFEST)["files"].items()
        }
    except (TypeError, KeyError, AttributeError):
        return None
    return None if any(Path(path).is_absolute() or ".." in Path(path).parts for path in files) else files


def _changed(out: Path, path: str, earlier: Mapping[str, list[str]]) -> bool:
    """Whether something stands at a path that is not what was written there."""
    try:
        return _digest((out / path).read_bytes()) not in earlier.get(path, [])
    except FileNotFoundError:
        return False
    except OSError:  # a folder of that name, or an unreadable file
        return True


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pdf(picture: Picture, page: Page) -> bytes:
    written = io.BytesIO()
    with drawn_for(page), style():
        picture.figure.savefig(written, format="pdf", metadata={"CreationDate": None})
    return written.getvalue()
