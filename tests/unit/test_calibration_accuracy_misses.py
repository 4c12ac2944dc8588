"""What stands behind a missed figure: runs left aside."""

from __future__ import annotations

import numpy as np

from autodeploy.calibration.record_prediction import counts_for_time
from autodeploy.calibration.shipped.tables import shipped_records
from docs.accuracy_page.errors import Runs
from docs.accuracy_page.misses import left_aside
from docs.accuracy_page.worst import diagnoses

RECORDS = tuple(
    r for r in shipped_records() if r.cluster.profile in {"ascend-800t-a2", "cloudmatrix-384"} and counts_for_time(r)
)


def test_every_record_left_aside_has_its_reason_beside_it() -> None:
    none = np.zeros(len(RECORDS))
    text = left_aside([Runs(RECORDS, none, none)])
    lines = text.splitlines()
    aside = [name for name, each in diagnoses().items() if each.cause == "record"]
    assert sorted(line.split("`")[1] for line in lines) == sorted(aside)
    assert all(len(line.split("%): ", 1)[1]) > 10 for line in lines)
