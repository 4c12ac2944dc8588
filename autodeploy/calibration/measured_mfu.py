"""The highest utilisation that a record reached, beside every predicted one: by chip, experts, format and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.calibration.coverage import coverage, named
from autodeploy.specs.planset import MeasuredMfu

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGE_CLUSTER = 64  # cards from which runs are compared with large ones alone: utilisation falls with the size
FORMATS = {"fp16": "bf16"}  # of one rate


def highest_mfu(family: str, *, moe: bool, npus: int, precision: str) -> MeasuredMfu | None:
    """The record with the highest utilisation in the class of a run; None where the class has no record.

    Runs on 64 cards and more are compared with such runs alone, smaller ones with smaller ones.
    """
    rows = [row for row in coverage()["records"] if _alike(row, family, moe, npus, precision)]
    if not rows:
        return None
    best = max(rows, key=lambda row: (row["mfu"], row["id"]))
    return MeasuredMfu(highest=best["mfu"], runs=len(rows), record=named(best))


def _alike(row: Mapping[str, Any], family: str, moe: bool, npus: int, precision: str) -> bool:
    formats = {FORMATS.get(each, each) for each in (row.get("precision", ""), precision)}
    same = row["family"] == family and row["moe"] == moe and len(formats) == 1
    return same and row.get("mfu") is not None and (int(row["npus"] or 1) >= LARGE_CLUSTER) == (npus >= LARGE_CLUSTER)
