"""Errors of models that know less, beside the predictions': the nearest record's utilisation, and other programs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.record_prediction import measured_step_s
from autodeploy.costs.inputs.context import PRETRAINING
from autodeploy.costs.prediction_spread import Neighbours, coverage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.specs.record import Record

PEERS = Path(__file__).with_name("peers.json")


@dataclass(frozen=True)
class Beside:
    """Mean errors of speed, absolute and relative, of the same runs: predicted without their family, and by a null
    model.
    """

    runs: int
    predicted: float
    null: float


def carried_errors() -> dict[str, float]:
    """Error of each run's speed if it had the utilisation of the nearest record of another family of models."""
    rows = [row for row in (*coverage()["records"], *coverage().get("others", ())) if row.get("mfu")]
    errors: dict[str, float] = {}
    by_family: dict[str, tuple[list[Mapping[str, Any]], Neighbours]] = {}
    for row in rows:
        family = str(row["model_family"])
        if family not in by_family:
            others = [other for other in rows if other["model_family"] != family]
            by_family[family] = others, Neighbours(others)
        others, neighbours = by_family[family]
        if others:
            nearest = neighbours.rows[int(np.argmin(neighbours.distances(row["family"], row)))]
            errors[row["id"]] = float(nearest["mfu"]) / float(row["mfu"]) - 1.0
    return errors


def left_out_errors() -> dict[str, float]:
    """Error of each run's speed, predicted without its family; of kinds that no fit sees, without its source."""
    rows = (*coverage()["records"], *coverage().get("others", ()))
    return {row["id"]: float(np.expm1(-row["left_out"])) for row in rows if row.get("left_out") is not None}


def beside(ids: Iterable[str], null: Mapping[str, float]) -> Beside | None:
    """Both means over the runs among `ids` that both models know."""
    predicted = left_out_errors()
    names = [name for name in ids if name in null and name in predicted]
    if not names:
        return None
    own, other = (float(np.mean([abs(errors[name]) for name in names])) for errors in (predicted, null))
    return Beside(len(names), own, other)


def kinds_of_rows() -> dict[str, str]:
    """Kind of each run of the coverage table."""
    table = coverage()
    fitted = {row["id"]: PRETRAINING for row in table["records"]}
    return fitted | {row["id"]: row["kind"] for row in table.get("others", ())}


def peer_errors(records: Sequence[Record]) -> dict[str, tuple[Mapping[str, Any], dict[str, float]]]:
    """What is said of each other program, and the error of each run's speed that it predicts."""
    measured = {record.id: measured_step_s(record) for record in records}
    found = {}
    for name, peer in json.loads(PEERS.read_text(encoding="utf-8")).items():
        pairs = ((run, measured.get(run), seconds) for run, seconds in peer["step_time_s"].items())
        found[name] = peer, {run: own / seconds - 1.0 for run, own, seconds in pairs if own}
    return found
