"""Prediction of measured serving, many records of one model and layout at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.errors import ProfileError
from autodeploy.evaluation.generation import Generator, generator_of, with_numbers
from autodeploy.stack.engines import ENGINES
from cost_models.serving import Service, served
from hardware_profiles.errors import ProfileError as BadProfile
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.specs.generation import GenerationRecord
    from hardware_profiles.generation import GenerationNumbers


@dataclass(frozen=True)
class Batch:
    """Records of one model, system and layout, and the model that generates; `index`: their places in the whole."""

    generator: Generator
    index: npt.NDArray[np.int64]
    records: tuple[GenerationRecord, ...]

    @property
    def name(self) -> tuple[str, str, int]:
        """Engine, mode and tensor-parallel degree: what a constant of a layer is of."""
        layout = self.records[0].generation
        return layout.engine, self.generator.mode, layout.tp


def batches_of(records: Sequence[GenerationRecord], numbers: GenerationNumbers | None = None) -> list[Batch]:
    """The records by model, system and layout, in the order in which they come.

    Raises
    ------
    SpecError
        if the profile is not known, or the device has no peak for the precision.
    """
    groups: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        layout = record.generation.model_dump_json(exclude={"input_length", "output_length", "concurrency"})
        key = f"{record.model.model_dump_json()}{record.cluster.model_dump_json()}{layout}"
        groups.setdefault(key, []).append(place)
    found = []
    for places in groups.values():
        record = records[places[0]]
        try:
            profile = load_profile(record.cluster.profile)
            device = profile.device(record.cluster.device)
        except BadProfile as error:
            raise ProfileError(str(error), path="/cluster/profile", hint=error.hint) from error
        generator = generator_of(record.model, profile, device, record.generation, numbers=numbers)
        members = tuple(records[place] for place in places)
        found.append(Batch(generator, np.array(places, dtype=np.int64), members))
    return found


def service_of(batch: Batch, values: Mapping[str, float] | None = None) -> Service:
    """What clients of the records measure.

    values : numbers of generation that replace the system's, by name.
    """
    layouts = [record.generation for record in batch.records]
    first = layouts[0]
    replicas = batch.records[0].cluster.num_dies / first.tp
    model = with_numbers(batch.generator.model, values) if values else batch.generator.model
    return served(
        model,
        np.array([layout.concurrency / replicas for layout in layouts]),
        np.array([float(layout.input_length) for layout in layouts]),
        np.array([float(layout.output_length) for layout in layouts]),
        most_running=float(first.max_num_seqs or np.inf),
        prefill_batch_tokens=ENGINES[first.engine].prefill_batch_tokens,
        together=ENGINES[first.engine].together,
    )
