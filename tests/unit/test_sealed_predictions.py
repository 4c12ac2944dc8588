"""Sealed predictions: never edited, only graded."""

from __future__ import annotations

import shutil

import pytest
import yaml

from autodeploy.specs.reading import read_spec_document
from docs import sealed_predictions
from docs.sealed_predictions import batches, digest_of, error_of, grades, page, seal, sealed

pytestmark = pytest.mark.unit
SEALED = {
    "predictions.jsonl": (40, "a84fa5907b8dec6f195b41c6b1918a650d8e8bbc4c2cc252671bf6c01ce6e536"),
    "predictions_2.jsonl": (10, "a2a3df85a5e23ff0331673952cc77ae05c926deb77738d4272089be34c68a6e5"),
}


def test_the_rows_are_those_that_were_sealed():
    texts = {path.name: path.read_text(encoding="utf-8") for path, _ in batches()}
    assert {name: (len(text.splitlines()), digest_of(text)) for name, text in texts.items()} == SEALED
    rows = sealed()
    assert [row["id"] for row in rows] == [f"S{place:02}" for place in range(1, 51)]
    assert len({(row["repository"], row["path"], row.get("spec")) for row in rows}) == len(rows)
    assert all(row["low_s"] < row["step_time_s"] < row["high_s"] for row in rows)
    assert all(len(row["commit"]) == 40 for row in rows)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of what is sealed."""
    copied = tmp_path / "sealed"
    shutil.copytree(sealed_predictions.FOLDER, copied)
    monkeypatch.setattr(sealed_predictions, "FOLDER", copied)
    return copied


@pytest.mark.parametrize("name", SEALED)
def test_a_changed_row_is_refused(folder, name):
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).write_text(text.replace('"id": "S', '"id": "T', 1), encoding="utf-8")
    with pytest.raises(ValueError, match="changed"):
        sealed()


def test_nothing_is_sealed_twice(folder):
    for row in (sealed()[0], sealed()[-1]):
        with pytest.raises(ValueError, match="sealed already"):
            seal([row], folder)


def test_a_further_batch_leaves_the_earlier_ones(folder, monkeypatch):
    monkeypatch.setattr(sealed_predictions, "_predicted", lambda name, launch, _: {**sealed()[0], **launch, "id": name})
    before = sealed()
    seal([{"repository": "a/b", "commit": "0" * 40, "path": "c.toml", "cluster": "cloudmatrix-384"}], folder)
    rows = sealed()
    assert rows[: len(before)] == before
    assert [row["id"] for row in rows[len(before) :]] == ["S51"]
    assert (folder / "digest_3.txt").exists()


def test_transcribed_recipes_say_what_they_leave_out():
    transcribed = [row for row in sealed() if "spec" in row]
    assert len(transcribed) == 7
    for row in transcribed:
        text = (sealed_predictions.FOLDER / "specs" / row["spec"]).read_text(encoding="utf-8")
        assert text.count("# Not in it:") == row["unmodelled"]
        assert row["num_npus"] == read_spec_document(yaml.safe_load(text)).cluster.num_npus


def test_the_page_is_made_of_the_rows_and_their_grades():
    assert sealed_predictions.PAGE.read_text(encoding="utf-8") == page(sealed(), grades())
    row = sealed()[0]
    slower = {"id": row["id"], "tokens_per_s_per_npu": 0.8 * row["tokens_per_s_per_npu"], "source": "a report"}
    assert error_of(row, slower) == (pytest.approx(0.25), True)
    assert error_of(row, {"step_time_s": 10.0 * row["step_time_s"]})[1] is False
    assert "| a report | +25.0 % | yes |" in page(sealed(), {row["id"]: slower})
