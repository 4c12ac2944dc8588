"""Predictions against a file of measured runs, of every kind that such a file can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.calibration.post_training import validate_rl
from autodeploy.calibration.validation import validate
from autodeploy.specs.measurements import GenerationRecord, RlRecord, read_measurements
from autodeploy.specs.record import Record, Unread
from hardware_profiles.reading import read_yaml_file

if TYPE_CHECKING:
    from pathlib import Path

    from autodeploy.calibration.validation import ValidationReport


def validate_file(path: Path, overlay: Path | None = None) -> tuple[ValidationReport, list[Record]]:
    """The comparison with every line of the file, and the records of training among them.

    Raises SpecError when the file or the overlay can't be read, or no line is a record.
    """
    if overlay is not None:
        read_yaml_file(overlay)
    lines = list(read_measurements(path))
    measured = [line for line in lines if isinstance(line, Record)]
    served = [line for line in lines if isinstance(line, GenerationRecord)]
    unread = [line for line in lines if isinstance(line, Unread)]
    steps = [line for line in lines if isinstance(line, RlRecord)]
    if unread and not measured and not served and not steps:
        raise unread[0].error
    post_trained = list(zip(steps, validate_rl(steps), strict=True))
    return validate(measured, overlay, unread, served, post_trained), measured
