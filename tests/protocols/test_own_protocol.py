"""What CONTRIBUTING.md says of a protocol of one's own: its module, yaml and command, run as they stand there."""

import re
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.figure import Figure

from specbench import protocols, sources
from specbench.core.errors import ConfigError
from specbench.protocols import Outcome, ParquetTable
from specbench.protocols.settings import check_conditions, unused
from specbench.runs.job_row import checked_outcome
from tests.helpers.command_lines import fenced
from tests.protocols.test_honest_rows import context
from tests.tree.test_own_verifier import shell


@pytest.fixture
def blocks(tmp_path) -> dict[str, str]:
    """The fenced blocks of the section by language, one each; module and yaml lie in a folder of the reader's own."""
    fences = fenced("CONTRIBUTING.md", "Add a protocol")
    (tmp_path / "my own" / "conf" / "protocol").mkdir(parents=True)
    (tmp_path / "my own" / "conf" / "protocol" / "stops.yaml").write_text(fences["yaml"])
    (tmp_path / "my own" / "stops.py").write_text(fences["python"])
    return fences


@pytest.mark.thorough
def test_a_protocol_from_outside_of_the_tree_leaves_its_rows(blocks, tmp_path):
    folder, line = tmp_path / "my own", f"{blocks['bash'].strip()} tracking.mode=disabled"
    got = shell(line, folder)
    assert got.ended.status == 0, got.ended.text
    assert re.search(r"[0-4] of 4 texts stop", got.ended.text)
    ends = got.table("ends.parquet")
    assert len(ends) == 4
    assert ends["tokens"].between(1, 8).all()
    assert ((ends["finished"] == "stop") | (ends["tokens"] == 8)).all()
    row = got.rows.iloc[0]
    assert (row["protocol"], row["batch_size"], row["max_new_tokens"]) == ("stops", 4, 8)
    for name in ("gamma", "verifier", "lossless", "drafter", "engine"):
        assert pd.isna(row[name]), name


def test_the_protocol_counts_stops_and_refuses_what_it_ignores(blocks, pair):
    """The short form: its class, in this process."""
    module: dict[str, Any] = {}
    exec(blocks["python"], module)
    made = module["Stops"](shortest=1)
    outcome = made.run(context(pair, made.needs_models))
    assert re.search(r"\d of \d texts stop", outcome.headline)
    assert {table.schema for table in outcome.tables.values()} == {module["ENDS"]}
    with pytest.raises(ConfigError, match="gamma=2: protocol=stops would ignore it. Texts are decoded plainly; leave"):
        check_conditions({"gamma": "2"}, unused(made), "stops")


ROWS = pa.schema([("prompt", pa.string()), ("tokens", pa.int64())])
TABLE = ParquetTable([{"prompt": "a", "tokens": 1}], ROWS)
PLACES = ("../../ends.parquet", "/tmp/ends.parquet", "..", ".ends", "", "a/b", 3)
TAKEN = ("results.parquet", "Job.json", "identity.json", "job.lock", "rules.json", "together.jsonl", "texts.jsonl")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", [*PLACES, *TAKEN])
@pytest.mark.parametrize("kind", ["tables", "documents"])
def test_a_name_outside_of_the_jobs_folder_or_of_a_file_of_its_own_is_refused(kind, name):
    """Such a table took the place of the job's row or state, or was written elsewhere."""
    outcome = Outcome("", **{kind: {name: TABLE if kind == "tables" else "text"}})
    problem = "the job itself writes" if name in TAKEN else "is no name of a file"
    with pytest.raises(ConfigError, match=rf"protocol=mine: .*{problem}.* Use "):
        checked_outcome(outcome, "mine")


def test_a_name_of_two_files_and_a_figure_elsewhere_are_refused():
    with pytest.raises(ConfigError, match=r"two outputs are named ends\.parquet\. Use an"):
        checked_outcome(Outcome("", tables={"ends.parquet": TABLE}, documents={"ends.parquet": ""}), "mine")
    with pytest.raises(ConfigError, match=r"'\.\./ends\.png' is no name of a file"):
        checked_outcome(Outcome("", figures={"../ends": Figure()}), "mine")


MISTAKES = {  # what a protocol returns, and what is said of it
    r"document a\.json is \{\}, which is no text\. Give a str": lambda: Outcome("", documents={"a.json": {}}),
    r"run returned None, which is no Outcome\. Return specbench\.protocols\.Outcome\(": lambda: None,
    r"run returned '2 of 4 texts stop', which is no Outcome": lambda: "2 of 4 texts stop",
    r"measured\['speedpu'\] is no column of results\.parquet\. Use speedup, or a table": lambda: Outcome(
        "", {"speedpu": 1.0}
    ),
    r"measured\['xyz'\] is no column of results\.parquet\. Use a field of RunRow": lambda: Outcome("", {"xyz": 1}),
    r"measured does not fit its columns \(.*: column speedup: .*fast": lambda: Outcome("", {"speedup": "fast"}),
    r"table ends\.parquet is \[\], which is no ParquetTable\. Use": lambda: Outcome("", tables={"ends.parquet": []}),
    r"table ends\.parquet does not fit its columns \(.*: column tokens: .*Change the rows": lambda: Outcome(
        "", tables={"ends.parquet": ParquetTable([{"prompt": "a", "tokens": "many"}], ROWS)}
    ),
    r"table ends\.parquet does not fit its columns \(KeyError: 'tokens'": lambda: Outcome(
        "", tables={"ends.parquet": ParquetTable([{"prompt": "a"}], ROWS)}
    ),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("message", MISTAKES)
def test_what_fits_no_column_is_named(message):
    with pytest.raises(ConfigError, match=f"^protocol=mine: {message}"):
        checked_outcome(MISTAKES[message](), "mine")


def test_an_outcome_that_fits_is_taken_as_it_is():
    rows = ({"prompt": name, "tokens": 1} for name in "ab")
    outcome = Outcome("2 texts", {"speedup": 1.5}, {"ends.parquet": ParquetTable(rows, ROWS)}, documents={"a.md": "a"})
    made = checked_outcome(outcome, "mine")
    assert made.tables["ends.parquet"].rows.to_pylist() == [{"prompt": name, "tokens": 1} for name in "ab"]
    assert (made.headline, made.measured, made.documents) == (outcome.headline, outcome.measured, outcome.documents)


def test_a_key_that_is_none_is_refused_before_anything_runs():
    class Written(protocols.MeasurementProtocol):
        needs_models = True
        own_conditions: ClassVar = {"gama": "Texts are decoded plainly."}

    with pytest.raises(ConfigError, match=r"protocol=Written: own_conditions names 'gama', .* Use some of .*gamma"):
        unused(Written())


@pytest.mark.parametrize("name", ["OwnConditions", "Prechecked"])
def test_a_protocol_with_a_base_of_the_last_release_says_what_it_ignores(name):
    base: Any = getattr(protocols, name)

    class Written(base):
        needs_models = True
        own_conditions: ClassVar = {"gamma": "Texts are decoded plainly."}

    with pytest.raises(ConfigError, match="would ignore it. Texts are decoded plainly"):
        check_conditions({"gamma": "2"}, unused(Written()), "written")


def test_names_of_the_last_release_are_still_there():
    assert protocols.Table is protocols.ParquetTable  # ty: ignore[unresolved-attribute]
    assert sources.Completion is sources.TextCompletion  # ty: ignore[unresolved-attribute]
