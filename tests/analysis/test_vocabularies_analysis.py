"""The report of +exp=vocabularies: what drafts with tokenizers of their own accept, and those without."""

from specbench.analysis import vocabularies
from tests.helpers.made_up_rows import make_row, said, table_of, write_run


def test_drafts_of_the_targets_vocabulary_alone_are_reported(tmp_path):
    """A sweep that was narrowed to them had no report, and ended with exit status 1."""
    text = said(vocabularies, write_run(tmp_path, [make_row(exp="vocabularies")]))
    assert "No draft of this run has a vocabulary of its own." in text
    assert [row["shared tokens"] for row in table_of(text)] == ["all"]


def test_runs_of_one_draft_are_told_apart(tmp_path):
    rows = [make_row(job=job, gamma=gamma, exp="vocabularies") for job, gamma in enumerate((2, 4))]
    assert [row["gamma"] for row in table_of(said(vocabularies, write_run(tmp_path, rows)))] == ["2", "4"]
