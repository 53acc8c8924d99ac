"""The report of +exp=drafters: what each of them gains in each category."""

from matplotlib.text import Text

from specbench.analysis import drafters
from specbench.metrics.results import CATEGORIES, CategoryRow, write_rows
from specbench.reports import markdown
from tests.helpers.made_up_rows import make_category, make_row, write_run

GAINS = {("model", "copy"): (4.0, 2.0), ("model", "new"): (2.0, 0.5)}  # acceptance length and speedup
GAINS |= {("prompt_lookup", "copy"): (1.0, 0.9), ("prompt_lookup", "new"): (1.0, None)}


def folder(path, categories=("copy", "new"), gains=GAINS, **changes):
    """Two drafters; the second drafts nothing."""
    rows = [
        make_row(job=job, drafter=name, exp="drafters", temperature=0.0, drafted_per_step=4.0 * (1 - job), **changes)
        for job, name in enumerate(("model", "prompt_lookup"))
    ]
    write_run(path, rows, empirical=False)
    for row in rows:
        lines = []
        for category in categories:
            length, speedup = gains[row.drafter, category]
            drafted = {"drafted_per_step": row.drafted_per_step, "acceptance_rate": None if row.job else 0.5}
            lines.append(make_category(category, speedup, acceptance_length=length, **drafted))
        if lines:
            write_rows(path / str(row.job) / CATEGORIES, lines, CategoryRow)
    return path


def test_drafters_stand_beside_each_other_in_each_category(tmp_path):
    report = drafters.build(folder(tmp_path))
    overall, beside, parts = report.tables
    assert beside.shown[["copy", "new"]].to_numpy().tolist() == [["2.00", "0.50"], ["0.90", "-"]]
    columns = ["category", "drafter", "tokens drafted", "acceptance rate", "acceptance length", "speedup"]
    assert parts.shown[columns].to_numpy().tolist() == [
        ["copy", "model", "4.00", "0.50", "4.00", "2.00"], ["copy", "prompt_lookup", "0.00", "-", "1.00", "0.90"],
        ["new", "model", "4.00", "0.50", "2.00", "0.50"], ["new", "prompt_lookup", "0.00", "-", "1.00", "-"],
    ]  # fmt: skip
    assert overall.shown["draft share"].tolist() == ["25.0%", "25.0%"]
    assert [cell[:4] for cell in overall.shown["tokens drafted"]] == ["4.00", "0.00"]
    text = markdown.render(report)
    assert "highest acceptance lengths are those of model in copy (4.00" in text
    assert "nan" not in text.lower()
    assert "synthetic" not in text


def test_without_times_there_is_no_figure(tmp_path):
    assert len(drafters.build(folder(tmp_path / "timed")).pictures) == 1
    untimed = dict.fromkeys(GAINS, (1.0, None))
    assert not drafters.build(folder(tmp_path / "not", gains=untimed)).pictures


def test_without_categories_there_is_one_table(tmp_path):
    report = drafters.build(folder(tmp_path, ()))
    assert len(report.tables) == 1


def test_runs_of_one_drafter_are_told_apart(tmp_path):
    """Two draft lengths had one name in the tables, the sentences and the figure."""
    rows = [make_row(job=job, gamma=gamma, temperature=0.0, drafted_per_step=2.0) for job, gamma in enumerate((2, 4))]
    write_run(tmp_path, rows, empirical=False)
    for row in rows:
        lines = [make_category("copy", 1.5, acceptance_length=float(row.gamma), drafted_per_step=2.0)]
        write_rows(tmp_path / str(row.job) / CATEGORIES, lines, CategoryRow)
    report = drafters.build(tmp_path)
    assert [table.shown["gamma"].tolist() for table in report.tables] == [["2", "4"], ["2", "4"]]
    text = markdown.render(report)
    assert "highest acceptance lengths are those of model, gamma 4 in copy" in text
    assert "model, gamma 2 at temperature 0" in text
    (picture,) = report.pictures
    assert {"model, gamma 2", "model, gamma 4"} <= {label.get_text() for label in picture.figure.findobj(Text)}
