"""Measured serving against its prediction: many records of one model and layout are predicted at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.rows import ServedErrors, ServedPredicted, ServedRow
from autodeploy.errors import ProfileError, SpecError
from autodeploy.evaluation.generation import Generator, generator_of
from autodeploy.messages import Message
from autodeploy.stack.engines import ENGINES
from cost_models.hbm import GIB
from cost_models.serving import Service, served
from hardware_profiles.errors import ProfileError as BadProfile
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from autodeploy.specs.generation import GenerationRecord
    from hardware_profiles.generation import GenerationNumbers


@dataclass(frozen=True)
class Batch:
    """Records of one model, system and layout, and the model that generates; `index`: their places in the whole."""

    generator: Generator
    index: npt.NDArray[np.int64]
    records: tuple[GenerationRecord, ...]


def alike_records(records: Sequence[GenerationRecord]) -> Iterable[list[int]]:
    """Places of the records of each model, system and layout."""
    groups: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        layout = record.generation.model_dump_json(exclude={"input_length", "output_length", "concurrency"})
        key = f"{record.model.model_dump_json()}{record.cluster.model_dump_json()}{layout}"
        groups.setdefault(key, []).append(place)
    return groups.values()


def batch_of(records: Sequence[GenerationRecord], places: list[int], numbers: GenerationNumbers | None = None) -> Batch:
    """Those of the records at `places`, which are alike; `numbers`: of generation, the system's without.

    Raises
    ------
    SpecError
        if the profile is not known, or the device has no peak for the precision.
    """
    record = records[places[0]]
    try:
        profile = load_profile(record.cluster.profile)
        device = profile.device(record.cluster.device)
    except BadProfile as error:
        raise ProfileError(str(error), path="/cluster/profile", hint=error.hint) from error
    generator = generator_of(record.model, profile, device, record.generation, numbers=numbers)
    return Batch(generator, np.array(places, dtype=np.int64), tuple(records[place] for place in places))


def service_of(batch: Batch) -> Service:
    """What clients of the records measure."""
    layouts = [record.generation for record in batch.records]
    first = layouts[0]
    replicas = batch.records[0].cluster.num_dies / first.tp
    return served(
        batch.generator.model,
        np.array([layout.concurrency / replicas for layout in layouts]),
        np.array([float(layout.input_length) for layout in layouts]),
        np.array([float(layout.output_length) for layout in layouts]),
        most_running=float(first.max_num_seqs or np.inf),
        prefill_batch_tokens=ENGINES[first.engine].prefill_batch_tokens,
        together=ENGINES[first.engine].together,
    )


def validate_generation(records: Sequence[GenerationRecord]) -> list[ServedRow]:
    """Every measurement beside its prediction, in order; one that can't be predicted is skipped with its reason."""
    served: dict[int, ServedRow] = {}
    for places in alike_records(records):
        members = [records[place] for place in places]
        try:
            batch = batch_of(records, places)
            service = service_of(batch)
            rows = [_row(batch, service, at, record) for at, record in enumerate(members)]
        except SpecError as error:
            rows = [ServedRow(id=r.id, model=r.model.name, measured=r.measured, skipped=str(error)) for r in members]
        served.update(zip(places, rows, strict=True))
    return [served[place] for place in range(len(records))]


def classes_of_generation(record: GenerationRecord) -> tuple[str, ...]:
    """Classes that a measurement counts in."""
    layout = record.generation
    experts = "experts" if record.model.is_moe else "dense"
    profile = f"generation {experts}, profile {record.cluster.profile}"
    return (profile, f"generation engine {layout.engine}", f"generation tp {layout.tp}")


def _row(batch: Batch, service: Service, at: int, record: GenerationRecord) -> ServedRow:
    tpot, wide = 1e3 * float(service.tpot_s[at]), 1.0 + batch.generator.half_width
    predicted = ServedPredicted(
        tpot_ms=tpot,
        tpot_interval_ms=(tpot / wide, tpot * wide),
        ttft_ms=1e3 * float(service.ttft_s[at]),
        decode_tokens_per_s_per_die=float(service.tokens_per_s[at]) / record.generation.tp,
        running=float(service.running[at]),
        mode=batch.generator.mode,
    )
    measured, rate = record.measured, record.measured.decode_tokens_per_s_per_die
    return ServedRow(
        id=record.id,
        model=record.model.name,
        measured=measured,
        predicted=predicted,
        error=ServedErrors(
            tpot=None if measured.tpot_ms is None else measured.tpot_ms / tpot - 1.0,
            time=None if rate is None else predicted.decode_tokens_per_s_per_die / rate - 1.0,
            ttft=None if measured.ttft_ms is None else measured.ttft_ms / predicted.ttft_ms - 1.0,
        ),
        parts=_parts(batch, record, predicted),
        diagnoses=tuple(f"{each.path}: {each.text}" for each in record.diagnoses),
        warnings=_warnings(batch, record, predicted),
    )


def _parts(batch: Batch, record: GenerationRecord, predicted: ServedPredicted) -> dict[str, float]:
    """Shares of the time per output token: the parts of a step, and prompts of other requests."""
    layout = record.generation
    context = layout.input_length + layout.output_length / 2.0
    parts = batch.generator.model.parts_s(predicted.running, context)
    shares = {name: 1e3 * float(part.max()) / predicted.tpot_ms for name, part in parts.items()}
    shares["prompts_s"] = 1.0 - sum(shares.values())
    return {name: share for name, share in shares.items() if share > 0.01}


def _warnings(batch: Batch, record: GenerationRecord, predicted: ServedPredicted) -> tuple[str, ...]:
    model, layout, said = batch.generator.model, record.generation, [*batch.generator.assumed().values()]
    if model.cache_space_bytes <= 0.0:
        needed, room = model.weights_bytes / GIB, (model.cache_space_bytes + model.weights_bytes) / GIB
        said.append(Message("calibration.weights_do_not_fit", needed=needed, room=room))
    asked, running = layout.concurrency * layout.tp / record.cluster.num_dies, predicted.running
    if asked > running and running < (layout.max_num_seqs or asked):
        said.append(Message("calibration.more_requests_than_cache", asked=asked, running=running))
    return tuple(said)
