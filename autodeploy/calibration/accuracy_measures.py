"""Everything the accuracy page states, computed once from the shipped records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.accuracy_errors import (
    Carried,
    Errors,
    Group,
    Ordered,
    Runs,
    carried_over,
    errors_of,
    layout_groups,
    ordered_pairs,
    residuals_at,
    runs_of,
)
from autodeploy.calibration.accuracy_sets import A100, ASCEND, H100, NEVER_FITTED, SPLITS
from autodeploy.calibration.accuracy_splits import Held, SplitErrors, left_out_intervals, size_split
from autodeploy.calibration.calibrate import Calibration, calibrate
from autodeploy.calibration.measured import fits_time
from autodeploy.calibration.predict import predict_record
from autodeploy.calibration.shipped import fitted_profiles
from autodeploy.calibration.validate import validate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.calibration.unmeasured import UnmeasuredReport
    from autodeploy.specs.record import Record


@dataclass(frozen=True)
class Measures:
    """Fits, what they left over, and what follows from that."""

    calibrations: dict[str, Calibration]
    runs: dict[str, Runs]
    never_fitted: Errors
    carried: Carried
    memory: dict[str, Errors]
    pairs: dict[str, Ordered]
    groups: list[Group]
    splits: list[SplitErrors]
    held: dict[str, tuple[Held, ...]]
    unmeasured: UnmeasuredReport

    @property
    def moe(self) -> Runs:
        """Ascend runs of models with experts."""
        runs = self.runs[ASCEND]
        return runs.of([r.model.is_moe for r in runs.records])


def measure(records: Sequence[Record]) -> Measures:
    """Fits each device once and each split once: about three minutes."""
    calibrations = {name: calibrate(records, name) for name in fitted_profiles()}
    runs = {name: runs_of(c) for name, c in calibrations.items()}
    other = [r for r in records if r.cluster.profile == NEVER_FITTED and fits_time(r)]
    return Measures(
        calibrations=calibrations,
        runs=runs,
        never_fitted=errors_of(residuals_at(other, None)),
        carried=carried_over(calibrations[A100], records, H100),
        memory={name: memory_errors(records, name) for name in (ASCEND, H100)},
        pairs={name: ordered_pairs(runs[name]) for name in (ASCEND, A100)},
        groups=[group for name in fitted_profiles() for group in layout_groups(runs[name])],
        splits=[size_split(split, records) for split in SPLITS],
        held={name: left_out_intervals(c) for name, c in calibrations.items()},
        unmeasured=validate(records).unmeasured,
    )


def memory_errors(records: Sequence[Record], profile: str) -> Errors:
    """Errors of the allocator's peak in runs of a few iterations; positive is too high. Memory is not fitted."""
    logs = []
    for record in records:
        peak = record.measured.peak_memory_gib
        if record.cluster.profile == profile and record.memory_regime == "first_step" and peak is not None:
            logs.append(np.log(peak / predict_record(record).memory_gib))
    return errors_of(np.array(logs, dtype=np.float64))
