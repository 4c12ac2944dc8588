"""Measured serving against its prediction, record by record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from autodeploy.calibration.generation_predict import batches_of, service_of
from autodeploy.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.generation import ServedMeasured
from autodeploy.specs.generation_layout import EngineMode
from autodeploy.specs.told import Text
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autodeploy.calibration.generation_predict import Batch
    from autodeploy.specs.generation import GenerationRecord
    from cost_models.serving import Service


class ServedPredicted(Document):
    """The prediction of one measurement, in the terms of what it measured."""

    tpot_ms: float
    tpot_interval_ms: Annotated[tuple[float, float], Field(description="80 %")]
    ttft_ms: float
    decode_tokens_per_s_per_die: float
    running: Annotated[float, Field(description="requests that decode at once on a data-parallel rank")]
    mode: EngineMode


class ServedErrors(Document):
    """predicted / measured - 1; `tpot` of 1 / TPOT, `time` of tokens per second, `ttft` of 1 / TTFT."""

    tpot: float | None = None
    time: float | None = None
    ttft: float | None = None


class ServedRow(Document):
    """One measurement of serving: measured, predicted, error, the parts of a step of decoding, and what is to say."""

    id: str
    kind: str = "generation"
    model: str
    measured: ServedMeasured
    predicted: ServedPredicted | None = None
    error: ServedErrors = ServedErrors()
    parts: dict[str, float] = Field(default_factory=dict)
    diagnoses: Annotated[tuple[Text, ...], Field(description="what was read otherwise than it was written")] = ()
    warnings: tuple[Text, ...] = ()
    skipped: Text | None = None

    @property
    def speed_error(self) -> float | None:
        """Of the time per output token, where it was measured; else of tokens per second."""
        return self.error.tpot if self.error.tpot is not None else self.error.time


def validate_generation(records: Sequence[GenerationRecord]) -> list[ServedRow]:
    """Every measurement beside its prediction, in order; one that can't be predicted is skipped with its reason."""
    found: dict[int, ServedRow] = {}
    groups: dict[str, list[int]] = {}
    for place, record in enumerate(records):
        groups.setdefault(f"{record.cluster.model_dump_json()}{record.generation.precision}", []).append(place)
    for places in groups.values():
        members = [records[place] for place in places]
        try:
            for batch in batches_of(members):
                found.update((places[at], row) for at, row in _rows(batch))
        except SpecError as error:
            found.update((place, _skipped(records[place], error)) for place in places)
    return [found[place] for place in range(len(records))]


def classes_of_generation(record: GenerationRecord) -> tuple[str, ...]:
    """Classes that a measurement counts in."""
    layout = record.generation
    experts = "experts" if record.model.is_moe else "dense"
    profile = f"generation {experts}, profile {record.cluster.profile}"
    return (profile, f"generation engine {layout.engine}", f"generation tp {layout.tp}")


def _skipped(record: GenerationRecord, error: SpecError) -> ServedRow:
    return ServedRow(id=record.id, model=record.model.name, measured=record.measured, skipped=str(error))


def _rows(batch: Batch) -> Iterator[tuple[int, ServedRow]]:
    service, tp = service_of(batch), batch.records[0].generation.tp
    for at, record in enumerate(batch.records):
        predicted = _predicted(batch, service, at, tp)
        yield (
            int(batch.index[at]),
            ServedRow(
                id=record.id,
                model=record.model.name,
                measured=record.measured,
                predicted=predicted,
                error=_errors(record.measured, predicted),
                parts=_parts(batch, record, predicted),
                diagnoses=tuple(f"{each.path}: {each.text}" for each in record.diagnoses),
                warnings=_warnings(batch, record, predicted),
            ),
        )


def _predicted(batch: Batch, service: Service, at: int, tp: int) -> ServedPredicted:
    tpot, wide = 1e3 * float(service.tpot_s[at]), 1.0 + batch.generator.half_width
    return ServedPredicted(
        tpot_ms=tpot,
        tpot_interval_ms=(tpot / wide, tpot * wide),
        ttft_ms=1e3 * float(service.ttft_s[at]),
        decode_tokens_per_s_per_die=float(service.tokens_per_s[at]) / tp,
        running=float(service.running[at]),
        mode=batch.generator.mode,
    )


def _errors(measured: ServedMeasured, predicted: ServedPredicted) -> ServedErrors:
    rate = measured.decode_tokens_per_s_per_die
    return ServedErrors(
        tpot=None if measured.tpot_ms is None else measured.tpot_ms / predicted.tpot_ms - 1.0,
        time=None if rate is None else predicted.decode_tokens_per_s_per_die / rate - 1.0,
        ttft=None if measured.ttft_ms is None else measured.ttft_ms / predicted.ttft_ms - 1.0,
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
    generator, layout = batch.generator, record.generation
    said = []
    if generator.mode_is_assumed:
        said.append(Message("calibration.mode_not_published_assumed", mode=generator.mode))
    if generator.numbers_of != record.cluster.profile:
        said.append(
            Message(
                "calibration.no_numbers_of_generation_for_those_of_taken",
                profile=record.cluster.profile,
                other=generator.numbers_of,
            )
        )
    if record.model.is_moe:
        said.append(
            Message("calibration.experts_on_this_system_no_measurement_fitted", share=100 * generator.half_width)
        )
    model = generator.model
    if model.cache_space_bytes <= 0.0:
        room = (model.cache_space_bytes + model.weights_bytes) / GIB
        said.append(
            Message("calibration.weights_do_not_fit_gib_die_of_gib", needed=model.weights_bytes / GIB, room=room)
        )
    asked = layout.concurrency * layout.tp / record.cluster.num_dies
    if asked > predicted.running and predicted.running < (layout.max_num_seqs or asked):
        said.append(
            Message("calibration.requests_ask_for_more_keys_and_values_than", asked=asked, running=predicted.running)
        )
    return tuple(said)
