"""Everything the accuracy page states, computed once from the shipped records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.profile_fit import Calibration, calibrate
from autodeploy.calibration.shipped.tables import fitted_profiles
from docs.accuracy_page.aims import Line, apart_of, ascend_peaks, h100_groups, record_lines, residuals_of
from docs.accuracy_page.classes import LeftOut, class_lines, left_out_classes
from docs.accuracy_page.errors import Errors, Ordered, Runs, ordered_pairs, runs_of
from docs.accuracy_page.kinds import GroupErrors, group_errors, kind_lines
from docs.accuracy_page.sets import A100, ASCEND, H100, SPLITS
from docs.accuracy_page.splits import Held, SplitErrors, left_out_intervals, size_split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.specs.record import Record


@dataclass(frozen=True)
class Measures:
    """Fits, what they left over, and what follows from that.

    apart : timed records on Ascend that are in no fit, with their residuals. h100 : errors by model and number format.
    peaks : records on Ascend with their measured peak (GiB) and the error of the predicted one.
    """

    calibrations: dict[str, Calibration]
    runs: dict[str, Runs]
    board: list[Line]
    apart: Runs
    h100: dict[str, dict[str, Errors]]
    peaks: list[tuple[Record, float, float]]
    pairs: dict[str, Ordered]
    splits: list[SplitErrors]
    held: dict[str, tuple[Held, ...]]
    kinds: list[GroupErrors]
    classes: list[LeftOut]


def measure(records: Sequence[Record]) -> Measures:
    """Fits each device once and each split once: about three minutes."""
    calibrations = {name: calibrate(records, name) for name in fitted_profiles()}
    runs = {name: runs_of(c) for name, c in calibrations.items()}
    apart = apart_of(records, ASCEND)
    left = residuals_of(apart, calibrations[ASCEND])
    errors = {r.id: float(np.expm1(-value)) for r, value in zip(apart, left, strict=True)}
    kinds, classes = group_errors(errors), left_out_classes(calibrations.values(), records)
    return Measures(
        calibrations=calibrations,
        runs=runs,
        board=[*record_lines(records, calibrations), *kind_lines(kinds), *class_lines(classes)],
        apart=Runs(tuple(apart), left, left),
        h100=h100_groups(records, calibrations[H100]),
        peaks=ascend_peaks(records),
        pairs={name: ordered_pairs(runs[name]) for name in (ASCEND, A100)},
        splits=[size_split(split, records, calibrations.values()) for split in SPLITS],
        held={name: left_out_intervals(c, calibrations.values()) for name, c in calibrations.items()},
        kinds=kinds,
        classes=classes,
    )
