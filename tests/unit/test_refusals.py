"""The list of what Megatron core refuses outside of its parser names rules that exist, or says why there is none."""

from __future__ import annotations

import pytest

from autodeploy.analysis.launch_checks.legality import known_rules
from autodeploy.stack.releases import release_named
from tests.launch_check.refusals import COLUMNS, FILES, VERDICTS, counted, refusals

ROWS = refusals()


def test_every_rule_that_is_named_exists() -> None:
    named = {name for row in ROWS if row.verdict == "rule" for name in row.words.split()}
    assert len(named) > 40
    assert named <= set(known_rules())


def test_every_row_has_a_verdict_and_counts_what_it_stands_for() -> None:
    assert {row.verdict for row in ROWS} == set(VERDICTS)
    assert {row.file for row in ROWS} == set(FILES)
    assert all(row.condition and row.words and row.function for row in ROWS)
    assert all(sum(row.counts.values()) > 0 and min(row.counts.values()) >= 0 for row in ROWS)
    assert len({(row.file, row.function, row.condition) for row in ROWS}) == len(ROWS)


def test_the_columns_are_commits_of_releases() -> None:
    commits = {release_named(name).components["megatron"].commit for name in COLUMNS.values()}
    assert len(commits) == len(COLUMNS)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("def f(x):\n    assert x\n    if x:\n        raise ValueError('no')", {"f": 2}),
        ("class A:\n    def g(self):\n        raise RuntimeError", {"A.g": 1}),
        ("def f():\n    def inside():\n        assert 1\n    assert 2", {"f": 1, "f.inside": 1}),
        ("def f():\n    raise KeyError('other')", {}),
        ("def f():\n    try:\n        assert 1\n    except ValueError:\n        raise", {"f": 1}),
        ("def f(e):\n    for x in e:\n        while x:\n            raise AssertionError(x)", {"f": 1}),
    ],
)
def test_statements_that_refuse_are_counted_by_function(source: str, expected: dict[str, int]) -> None:
    assert counted(source) == expected
