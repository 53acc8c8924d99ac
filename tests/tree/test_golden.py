"""Tokens, step logs, formulas and columns are those of the record (golden_record.py says how to write it anew)."""

import pytest

from tests.helpers.cases import in_float64
from tests.helpers.golden_record import RUNS, as_read, columns, decoded, kept, laws, replayed


@pytest.fixture(scope="module")
def embedded(pair):
    return in_float64(pair)


@pytest.mark.cases(12, 18)  # each verifier, drafter and sampler is in one of them
@pytest.mark.parametrize("name", RUNS)
def test_texts_and_step_logs_are_those_of_the_record(embedded, name):
    assert as_read(decoded(embedded, name)) == kept("decoding")[name]


def test_the_record_has_every_run():
    assert [*kept("decoding")] == [*RUNS]


@pytest.mark.parametrize(("name", "part"), [("laws", laws), ("replay", replayed)], ids=["laws", "replay"])
def test_formulas_give_the_numbers_of_the_record(name, part):
    _close(as_read(part()), kept(name))


def test_stored_tables_have_the_columns_of_the_record():
    """Released columns stay: to remove one or change its type needs a line in CHANGELOG.md and a new record. New
    columns may join them."""
    tables = as_read(columns())
    for table, expected in kept("columns").items():
        assert {name: tables[table].get(name) for name in expected} == expected, table


def _close(value, expected):
    if isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key in expected:
            _close(value[key], expected[key])
    elif isinstance(expected, list):
        assert len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            _close(one, other)
    else:
        assert value == pytest.approx(expected, rel=1e-9, abs=1e-12)
