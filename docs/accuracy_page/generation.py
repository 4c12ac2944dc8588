"""How far predicted generation is off: in sample, by files left out, by lengths left out, and before any fit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.shipped.generation import (
    batches_of,
    fit_generation,
    predicted_seconds,
    refit_constants,
    seconds_measured,
    seconds_predicted,
)
from docs.accuracy_page.errors import Errors, errors_of
from hardware_profiles.generation import generation_numbers
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.calibration.shipped.generation import GenerationFit
    from autodeploy.specs.measurements import GenerationRecord
    from cost_models.arrays import Floats

EVERY = 10  # rows of a left-out file between two that its constants are refitted on
FITTED_SETS = 3  # sets of lengths that are fitted, the others predicted

File = tuple[str, str]  # model, engine
Lengths = tuple[int, int]


@dataclass(frozen=True)
class LeftOut:
    """Residuals log(predicted / measured) of a part that a fit did not see.

    refitted : with constants of a layer that are its own, from every tenth row; `rest` marks the other rows.
    """

    name: str
    plain: Floats
    refitted: Floats
    rest: Floats


def residuals_of(records: Sequence[GenerationRecord], profile: str, numbers: GenerationFit) -> Floats:
    """log(predicted / measured) of the time per output token under fitted numbers [records]."""
    batches = batches_of(records, generation_numbers(load_profile(profile), calibrated=False))
    measured = np.array([seconds_measured(record) for record in records])
    return np.asarray(np.log(predicted_seconds(batches, len(records), numbers) / measured))


def residuals_as_shipped(records: Sequence[GenerationRecord], *, calibrated: bool = True) -> Floats:
    """The same by the numbers that ship; without calibration by their priors."""
    residuals = np.empty(len(records))
    for name in sorted({record.cluster.profile for record in records}):
        places = [place for place, record in enumerate(records) if record.cluster.profile == name]
        numbers = generation_numbers(load_profile(name), calibrated=calibrated)
        for batch in batches_of([records[place] for place in places], numbers):
            measured = np.array([seconds_measured(record) for record in batch.records])
            residuals[[places[at] for at in batch.index]] = np.log(seconds_predicted(batch) / measured)
    return residuals


def files_left_out(records: Sequence[GenerationRecord], profile: str) -> list[LeftOut]:
    """Every file (model and engine) by a fit to the others."""
    files = []
    for name in sorted({file_of(record) for record in records}):
        out = [record for record in records if file_of(record) == name]
        numbers = fit_generation([record for record in records if file_of(record) != name], profile)
        own = refit_constants(out[::EVERY], profile, numbers)
        rest = np.array([float(place % EVERY != 0) for place in range(len(out))])
        plain, refitted = (residuals_of(out, profile, each) for each in (numbers, own))
        files.append(LeftOut(f"{name[0]}, {name[1]}", plain, refitted, rest))
    return files


def lengths_left_out(records: Sequence[GenerationRecord], profile: str) -> dict[tuple[Lengths, ...], Errors]:
    """Errors on the other lengths, by the sets of lengths that were fitted: every choice of three."""
    errors_by_lengths = {}
    for chosen in combinations(sorted({lengths_of(record) for record in records}), FITTED_SETS):
        numbers = fit_generation([record for record in records if lengths_of(record) in chosen], profile)
        out = [record for record in records if lengths_of(record) not in chosen]
        errors_by_lengths[chosen] = errors_of(residuals_of(out, profile, numbers))
    return errors_by_lengths


def file_of(record: GenerationRecord) -> File:
    """Model and engine: what one file of the source has."""
    return record.model.name, record.generation.engine


def lengths_of(record: GenerationRecord) -> Lengths:
    """Mean tokens of prompt and answer: what a data set has."""
    return record.generation.input_length, record.generation.output_length
