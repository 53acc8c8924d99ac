"""Tokens, step logs, formulas and columns are those of the record (golden_record.py says how to write it anew)."""

import pytest

from tests.helpers.golden_record import as_read, columns, decoding, kept, laws, replayed


def test_texts_and_step_logs_are_those_of_the_record():
    found, expected = as_read(decoding()), kept("decoding")
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == []


@pytest.mark.parametrize(("name", "part"), [("laws", laws), ("replay", replayed)], ids=["laws", "replay"])
def test_formulas_give_the_numbers_of_the_record(name, part):
    _close(as_read(part()), kept(name))


def test_stored_tables_have_the_columns_of_the_record():
    """Released columns stay: one that goes or changes its type needs a line in CHANGELOG.md and a new record. New
    columns may join them."""
    found = as_read(columns())
    for table, expected in kept("columns").items():
        assert {name: found[table].get(name) for name in expected} == expected, table


def _close(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            _close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _close(one, other)
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
