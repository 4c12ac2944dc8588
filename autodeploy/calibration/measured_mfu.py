"""The highest utilisation that a record reached, beside every predicted one: by chip, experts, format and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.calibration.coverage import looked_up, named
from autodeploy.specs.planset import MeasuredMfu

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGE_CLUSTER = 64  # cards from which runs are compared with large ones alone: utilisation falls with the size
FORMATS = {"fp16": "bf16"}  # of one rate


def highest_mfu(family: str, *, moe: bool, npus: int, precision: str) -> MeasuredMfu | None:
    """The record with the highest utilisation in the class of a run; None where the class has no record.

    Runs on 64 cards and more are compared with such runs alone, smaller ones with smaller ones.
    """
    alike = family, moe, npus >= LARGE_CLUSTER, FORMATS.get(precision, precision)

    def highest(table: Mapping[str, Any]) -> MeasuredMfu | None:
        rows = [row for row in table["records"] if row.get("mfu") is not None and _class_of(row) == alike]
        if not rows:
            return None
        best = max(rows, key=lambda row: (row["mfu"], row["id"]))
        return MeasuredMfu(highest=best["mfu"], runs=len(rows), record=named(best))

    return looked_up(("highest_mfu", *alike), highest)


def _class_of(row: Mapping[str, Any]) -> tuple[str, bool, bool, str]:
    precision = row.get("precision", "")
    return row["family"], row["moe"], int(row["npus"] or 1) >= LARGE_CLUSTER, FORMATS.get(precision, precision)
