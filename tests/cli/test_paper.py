"""``python -m specbench paper``: a folder that compiles, is written again without harm, and refusals with a remedy."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from specbench.core.errors import ConfigError
from specbench.metrics import results
from specbench.metrics.results import RESULT_SCHEMA, RESULTS, write_rows
from specbench.reports import Picture
from specbench.reports.latex import folder
from specbench.reports.plots.style import Page, drawn_for
from specbench.runs.paper import paper
from specbench.runs.state import JobState, Status
from tests.analysis import test_latency_analysis
from tests.helpers.made_up_rows import gamma_rows, make_row, write_run
from tests.helpers.small_sweeps import planned_sweep
from tests.reports.test_latex import HOSTILE, report

needs_tex = pytest.mark.skipif(
    not all(map(shutil.which, ("pdflatex", "bibtex", "pdftotext")))
    or not subprocess.run(["kpsewhich", "ptmr7t.tfm"], capture_output=True, check=False).stdout,
    reason="no TeX: apt-get install texlive-latex-recommended texlive-fonts-recommended poppler-utils",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A gamma sweep and timings of verifiers, where a user has them."""
    outputs = tmp_path_factory.mktemp("user") / "outputs"
    gamma = write_run(outputs / "gamma_sweep" / "one", gamma_rows())
    return gamma, test_latency_analysis.write_run(outputs / "verifier_latency" / "one")


@pytest.fixture(scope="module")
def made(runs: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both; only those figures are drawn that main.tex shows, since each takes a second."""
    out, draw = tmp_path_factory.mktemp("made") / "paper", folder._pdf

    def shown_alone(picture: Picture, page: Page) -> bytes:
        return draw(picture, page) if picture.name in ("speedup_against_gamma", "time_against_batch") else b""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "_pdf", shown_alone)
        assert paper([*map(str, runs), "--out", str(out)]) == 0
    return out


def compiled(made: Path, place: Path, times: int = 3) -> tuple[str, str]:
    """The log of main.tex and the text of its pages."""
    shutil.copytree(made, place)
    for turn in range(times):
        command = ["pdflatex", "-interaction=nonstopmode", "-no-shell-escape", "main"]
        subprocess.run(command, cwd=place, capture_output=True, check=False, timeout=120)
        if turn == 0:
            subprocess.run(["bibtex", "main"], cwd=place, capture_output=True, check=False, timeout=60)
    log = (place / "main.log").read_text(encoding="latin-1")
    command = ["pdftotext", "-layout", "main.pdf", "-"]
    return log, subprocess.run(command, cwd=place, capture_output=True, text=True, check=False).stdout


@needs_tex
def test_the_set_of_two_experiments_compiles_to_two_pages_without_a_warning(made: Path, tmp_path: Path) -> None:
    log, text = compiled(made, tmp_path / "paper")
    assert "Output written on main.pdf (2 pages" in log
    assert not re.findall(r"^!.*|LaTeX (?:Font )?Warning.*|Overfull.*", log, re.MULTILINE)
    assert "1.60 [1.59, 1.61]" in text
    assert "Yaniv Leviathan" in text


@needs_tex
def test_text_from_data_is_printed_and_never_read(tmp_path: Path) -> None:
    pages = folder.pages(3.3, 7.0, "DejaVu Sans")
    hostile = report(HOSTILE)
    with drawn_for(pages["column"]):
        files = folder.files({"column": [hostile], "wide": [hostile]}, pages, "0.1.0")
    folder.write(files, tmp_path / "paper")
    log, text = compiled(tmp_path / "paper", tmp_path / "compiled", times=1)
    assert not re.findall(r"^!.*", log, re.MULTILINE)
    assert "/etc/passwd)" not in log  # no such file was opened
    assert "root:" not in text
    for words in (r"\input{/etc/passwd}", "$x$", "<script>"):
        assert text.count(words) >= 2, words
    assert "a_b & ~ ^" in " ".join(text.split())  # as typewriter letters have them


@needs_tex
def test_a_number_that_does_not_exist_is_an_error_that_names_it(tmp_path: Path) -> None:
    pages = folder.pages(3.3, 7.0, "DejaVu Sans")
    files = folder.files({"column": [report()], "wide": [report()]}, pages, "0.1.0")
    folder.write(files, tmp_path / "paper")
    text = r"\documentclass{article}\input{numbers}\begin{document}\specbench{made_up/gone}\end{document}"
    (tmp_path / "paper" / "main.tex").write_text(text)
    log, _ = compiled(tmp_path / "paper", tmp_path / "compiled", times=1)
    assert "! Package specbench Error: No number is named `made_up/gone'." in log


def test_figures_are_as_wide_as_columns_and_hold_truetype_letters(made: Path) -> None:
    for end, inches in (("column", 3.3), ("wide", 7.0)):
        content = (made / "gamma_sweep" / f"speedup_against_gamma-{end}.pdf").read_bytes()
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", content)
        assert float(width) == pytest.approx(72 * inches, abs=0.01)
        assert b"STIXGeneral" in content
        assert b"DejaVu" not in content
        assert b"/Type3" not in content


def test_headlines_and_citations(made: Path) -> None:
    numbers = (made / "numbers.tex").read_text()
    assert r"\def\specbenchSpeedup{\specbench{gamma_sweep/Speedup}}" in numbers
    assert r"\specbenchnumber{gamma_sweep/Speedup}{1.60 [1.59, 1.61]}" in numbers
    assert r"\specbenchnumber{gamma_sweep/table/gamma=3,verifier=masked/speedup/value}{1.60}" in numbers
    assert r"\specbenchnumber{verifier_latency/LatencyVerifier}{fused}" in numbers
    assert "sun2025block" in (made / "refs.bib").read_text()


FOUND = {"main.tex": b"example", "numbers.tex": b"1", "a/table.tex": b"2"}


def test_a_folder_is_written_again_and_what_changed_by_hand_is_not_lost(tmp_path: Path) -> None:
    out = tmp_path / "paper"
    folder.write(FOUND, out)
    (out / "main.tex").write_bytes(b"my own")
    (out / "main.aux").write_bytes(b"of TeX")
    assert folder.write({**FOUND, "numbers.tex": b"3"} | {"b/table.tex": b"4"}, out) == ["main.tex"]
    assert (out / "numbers.tex").read_bytes() == b"3"
    assert (out / "main.tex").read_bytes() == b"my own"
    assert (out / "main.aux").exists()
    folder.write({name: FOUND[name] for name in ("main.tex", "numbers.tex")}, out)
    assert not (out / "a" / "table.tex").exists()  # no longer part of it
    assert (out / "main.tex").read_bytes() == b"my own"  # still known as changed
    (out / "numbers.tex").write_bytes(b"by hand")
    with pytest.raises(ConfigError, match=r"numbers\.tex is not as specbench paper wrote it.*Move your changes"):
        folder.write(FOUND, out)
    assert (out / "numbers.tex").read_bytes() == b"by hand"


def test_a_folder_whose_writer_was_killed_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "paper"
    folder.write(FOUND, out)
    new = {name: content + b"!" for name, content in FOUND.items()}
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            folder.write(new, out)
    assert folder.write(new, out) == []
    assert (out / "numbers.tex").read_bytes() == b"1!"


@pytest.mark.parametrize("content", ["[]", '{"files": 1}', '{"files": {"../thesis.tex": ["x"]}}', "no JSON"])
def test_a_list_of_files_that_is_not_ours_allows_nothing(tmp_path: Path, content: str) -> None:
    out = tmp_path / "paper"
    out.mkdir()
    (out / folder.MANIFEST).write_text(content)
    with pytest.raises(ConfigError, match="did not write"):
        folder.write(FOUND, out)


def test_a_folder_that_holds_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ConfigError, match=r"--out=.*thesis\.tex.*Name a folder that is not there yet"):
        folder.write(FOUND, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(ConfigError, match="is not a folder"):
        folder.write(FOUND, tmp_path / "thesis.tex")
    out = tmp_path / "paper"
    folder.write(FOUND, out)
    (out / "b").mkdir()
    (out / "b" / "table.tex").write_text("mine, and in the way")
    with pytest.raises(ConfigError, match=r"b/table\.tex is not as"):
        folder.write({**FOUND, "b/table.tex": b"4"}, out)


def test_what_cannot_be_shown_is_named_with_the_remedy(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = ["--out", str(tmp_path / "paper")]
    with pytest.raises(ConfigError, match="RUN=gone: neither the folder of a run nor an experiment.*was run here"):
        paper(["gone", *out])
    with pytest.raises(ConfigError, match=r"RUN=gamma_sweep: no run of it.*\+exp=gamma_sweep first"):
        paper(["gamma_sweep", *out])
    (tmp_path / "gamma_sweep" / "1").mkdir(parents=True)
    write_rows(tmp_path / "gamma_sweep" / "1" / RESULTS, [], RESULT_SCHEMA)
    with pytest.raises(ConfigError, match="RUN_DIR=.*empty"):
        paper([str(tmp_path / "gamma_sweep" / "1"), *out])
    with pytest.raises(ConfigError, match="which has no report"):
        paper([str(write_run(tmp_path / "own" / "1", [make_row(exp="own", protocol="cost")], empirical=False)), *out])
    with pytest.raises(ConfigError, match="--font=No Such Font"):
        paper([str(runs[0]), *out, "--font", "No Such Font"])
    with pytest.raises(ConfigError, match="--column, --wide=7"):
        paper([str(runs[0]), *out, "--column", "7", "--wide", "3"])
    assert not (tmp_path / "paper").exists()


def test_failed_jobs_are_named_and_a_part_says_that_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states = JobState("a", Status.DONE), JobState("b", Status.FAILED, reason="no memory. Free some.")
    run = planned_sweep(tmp_path / "gamma_sweep" / "1", *states, exp="gamma_sweep")
    write_rows(run / "0" / RESULTS, [make_row(gamma=1)], RESULT_SCHEMA)
    results.collect(run)
    with pytest.raises(
        ConfigError, match=r"1 of 2 jobs done, 1 failed; failed: job 1 .*no memory.*some\. To .*resume=.*--partial"
    ):
        paper([str(run), "--out", str(tmp_path / "paper")])
    monkeypatch.setattr(folder, "_pdf", lambda picture, page: b"")
    assert paper([str(run), "--out", str(tmp_path / "a paper"), "--partial"]) == 0
    assert f"cd '{tmp_path / 'a paper'}'; latexmk -pdf main" in capsys.readouterr().err
    for name in ("table-table", "figure-speedup_against_gamma"):
        text = (tmp_path / "a paper" / "gamma_sweep" / f"{name}.tex").read_text()
        assert "This report is of a part of its sweep" in text
