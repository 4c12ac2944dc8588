"""Sealed predictions: never edited, only graded."""

from __future__ import annotations

import pytest

from docs import sealed_predictions
from docs.sealed_predictions import error_of, grades, page, seal, sealed

pytestmark = pytest.mark.unit
SEALED = "a84fa5907b8dec6f195b41c6b1918a650d8e8bbc4c2cc252671bf6c01ce6e536"


def test_the_rows_are_those_that_were_sealed():
    assert sealed_predictions.digest_of(sealed_predictions.ROWS.read_text(encoding="utf-8")) == SEALED
    rows = sealed()
    assert len({(row["repository"], row["path"]) for row in rows}) == len(rows) == 40
    assert all(row["low_s"] < row["step_time_s"] < row["high_s"] for row in rows)
    assert all(len(row["commit"]) == 40 for row in rows)


def test_a_changed_row_is_refused(tmp_path, monkeypatch):
    changed = tmp_path / "rows.jsonl"
    changed.write_text(sealed_predictions.ROWS.read_text(encoding="utf-8").replace('"S01"', '"S41"'), encoding="utf-8")
    monkeypatch.setattr(sealed_predictions, "ROWS", changed)
    with pytest.raises(ValueError, match="changed"):
        sealed()


def test_nothing_is_sealed_twice(tmp_path):
    with pytest.raises(FileExistsError):
        seal([], tmp_path)


def test_the_page_is_made_of_the_rows_and_their_grades():
    assert sealed_predictions.PAGE.read_text(encoding="utf-8") == page(sealed(), grades())
    row = sealed()[0]
    slower = {"id": row["id"], "tokens_per_s_per_npu": 0.8 * row["tokens_per_s_per_npu"], "source": "a report"}
    assert error_of(row, slower) == (pytest.approx(0.25), True)
    assert error_of(row, {"step_time_s": 10.0 * row["step_time_s"]})[1] is False
    assert "| a report | +25.0 % | yes |" in page(sealed(), {row["id"]: slower})
