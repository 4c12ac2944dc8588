"""Measured steps of post-training against their prediction, record by record."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from autodeploy.calibration.record_prediction import ComparedRow
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.post_training.overheads import defaults_of, overheads_of
from autodeploy.costs.post_training.rl_step import rl_step
from autodeploy.costs.post_training.samples import InfeasibleRlError
from autodeploy.costs.post_training.step import MEAN_HALF_WIDTH
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.measurements import RlMeasured
from autodeploy.specs.record import Diagnoses
from autodeploy.specs.rl import EngineMode
from autodeploy.specs.software import SoftwareSpec, release_of
from autodeploy.specs.strategy import Recompute
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.costs.post_training.overheads import Overheads
    from autodeploy.costs.post_training.step import RlStep
    from autodeploy.specs.measurements import RlRecord
    from autodeploy.specs.record import Diagnosis
    from autodeploy.specs.rl import RlStrategy, RlTraining
    from autodeploy.specs.strategy import Strategy


class RlPredicted(Document):
    """The prediction of one step, in the terms of what was measured of it."""

    step_time_s: float
    step_time_interval_s: Annotated[tuple[float, float], Field(description="80 %")]
    tokens_per_s_per_npu: Annotated[float, Field(description="counted as the record's are")]
    generation_s: float
    log_probabilities_s: float
    reference_s: float | None = None
    update_s: float
    hand_over_s: float
    tpot_ms: float
    tail_share: float
    peak_memory_gib: float
    generation_npus: Annotated[int | None, Field(description="cards that generate; null: all")] = None
    mode: EngineMode


class RlErrors(Document):
    """`time` of tokens per second where they are published, else of 1 / step time."""

    time: float | None = None


class RlRow(ComparedRow):
    """One measured step of post-training."""

    kind: Literal["rl_post_training"] = "rl_post_training"
    measured: RlMeasured
    predicted: RlPredicted | None = None
    error: RlErrors = RlErrors()

    @property
    def speed_error(self) -> float | None:
        """Of the speed of the step."""
        return self.error.time


# Prediction of a measured step.
MEMORY_RULE = "update_memory"


@dataclass(frozen=True)
class RlPrediction:
    """A step as it is predicted: with what stood in for what the record does not say, each a diagnosis."""

    record: RlRecord
    rl: RlTraining
    strategy: Strategy
    layout: RlStrategy
    step: RlStep
    diagnoses: tuple[Diagnosis, ...]

    @property
    def tokens_per_s_per_npu(self) -> float:
        """By the record's rule of counting."""
        return self.step.tokens_per_s[self.record.token_count] / int(self.record.cluster.num_npus or 1)


def predict_rl(
    record: RlRecord, overheads: Overheads | None = None, facts: Mapping[str, str] | None = None
) -> RlPrediction:
    """The step of a record.

    overheads : in place of those of its framework. facts : of its stack that are otherwise, by `section.name`.

    Raises SpecError if it can't have run as the record says.
    """
    log, defaults = _Assumptions(), defaults_of(record.framework)
    rl = _training(record, defaults, log)
    layout = _layout(record, defaults, rl, log)
    strategy = record.strategy.model_copy(update={"rl": None})
    profile, adds = profile_of(record.cluster), overheads or overheads_of(record.framework)
    of_record = release_of(record)
    software = SoftwareSpec(stack=of_record.stack.name, overrides=dict(facts or {}))
    if strategy.swap_optimizer and strategy.optimizer_offload_fraction is None and of_record.host.updates:
        # Recipes of this stack that have states on the host update them there.
        strategy = strategy.model_copy(update={"swap_optimizer": False, "optimizer_offload_fraction": 1.0})
    try:
        step = rl_step(record.model, profile, record.cluster, rl, strategy, layout, overheads=adds, software=software)
    except InfeasibleRlError as error:
        if error.rule != MEMORY_RULE or "recompute" in record.strategy.model_fields_set:
            raise
        strategy = strategy.model_copy(update={"recompute": Recompute(granularity="full")})
        log.assume("/strategy/recompute", "full")
        step = rl_step(record.model, profile, record.cluster, rl, strategy, layout, overheads=adds, software=software)
    if record.training.rl.response_length.mean_is_assumed:
        step = replace(step, mean_half_width=MEAN_HALF_WIDTH)
    return RlPrediction(record, rl, strategy, layout, step, (*record.diagnoses, *log.found))


class _Assumptions(Diagnoses):
    """Diagnoses of a step: what stands in for what its source does not say."""

    def assume(self, path: str, value: Any, told: object = None) -> dict[str, Any]:
        """The field with its value, which a diagnosis more tells."""
        self.say(path, Message("post_training.not_published_read_as", value=value if told is None else told))
        return {path.rpartition("/")[2]: value}


def _training(record: RlRecord, defaults: Mapping[str, Any], log: _Assumptions) -> RlTraining:
    rl = record.training.rl
    update: dict[str, Any] = {}
    share, prompt, response = float(defaults["mean_to_max"]), rl.prompt_length, rl.response_length
    if response.mean_is_assumed:
        mean = share * response.max_tokens
        said = log.assume("/training/rl/response_length/mean", mean, f"{mean:.0f}")
        update["response_length"] = response.model_copy(update=said)
    if prompt.mean is None:
        mean = share * prompt.max_tokens
        said = log.assume("/training/rl/prompt_length/mean", mean, f"{mean:.0f}")
        update["prompt_length"] = prompt.model_copy(update=said)
    elif defaults.get("cap_counts_prompt") and response.max is not None and response.mean is not None:
        most = max(ceil(response.mean), response.max - round(prompt.mean))
        update["response_length"] = response.model_copy(update={"max": most})
    most_samples = defaults.get("update_samples")
    if most_samples and "updates_per_step" not in rl.model_fields_set and rl.samples > most_samples:
        updates = gcd(rl.samples // most_samples, rl.prompts_per_step)
        update |= log.assume("/training/rl/updates_per_step", updates)
    return rl.model_copy(update=update)


def _layout(record: RlRecord, defaults: Mapping[str, Any], rl: RlTraining, log: _Assumptions) -> RlStrategy:
    layout = record.layout
    update: dict[str, Any] = {}
    if layout.placement == "colocated" and "offload" not in layout.model_fields_set:
        update |= log.assume("/strategy/rl/offload", tuple(defaults["offload"]), ", ".join(defaults["offload"]))
    said = "pack_tokens" in layout.model_fields_set or defaults["pack_samples"] is None
    if layout.pack_tokens is None and not said:
        longest = ceil(rl.prompt_length.mean_tokens + rl.response_length.max_tokens)
        tokens = int(defaults["pack_samples"]) * record.strategy.micro_batch_size * longest
        update |= log.assume("/strategy/rl/pack_tokens", tokens)
    usual = {"mode": defaults.get("mode"), "memory_fraction": defaults.get("memory_fraction", {}).get(layout.placement)}
    of_engine: dict[str, Any] = {}
    for name, value in usual.items():
        if value is not None and getattr(layout.generation, name) is None:
            of_engine |= log.assume(f"/strategy/rl/generation/{name}", value)
    return layout.model_copy(update={**update, "generation": layout.generation.model_copy(update=of_engine)})


LEAST_PART = 0.01  # of the step, that is told


def validate_rl(records: Sequence[RlRecord]) -> list[RlRow]:
    """Every step beside its prediction, in order; one that can't be predicted is skipped with its reason."""
    rows = []
    for record in records:
        try:
            rows.append(_row(predict_rl(record)))
        except SpecError as error:
            rows.append(RlRow.of(record, skipped=str(error)))
    return rows


def speed_error(prediction: RlPrediction) -> float:
    """predicted / measured - 1 of the speed: of tokens per second where they are published, as there they are exact."""
    measured = prediction.record.measured
    if measured.tokens_per_s_per_npu is not None:
        return prediction.tokens_per_s_per_npu / measured.tokens_per_s_per_npu - 1.0
    assert measured.step_time_s is not None
    return measured.step_time_s / prediction.step.step_time_s - 1.0


def _row(prediction: RlPrediction) -> RlRow:
    record, step = prediction.record, prediction.step
    seconds = {phase.name: phase.end_s - phase.start_s for phase in step.phases}
    return RlRow.of(
        record,
        predicted=RlPredicted(
            step_time_s=step.step_time_s,
            step_time_interval_s=step.interval_s,
            tokens_per_s_per_npu=prediction.tokens_per_s_per_npu,
            generation_s=seconds["generation"],
            log_probabilities_s=seconds["log_probabilities"],
            reference_s=seconds.get("reference"),
            update_s=seconds["update"],
            hand_over_s=step.hand_over_s,
            tpot_ms=step.generation["tpot_ms"],
            tail_share=step.generation["tail_share"],
            peak_memory_gib=max(step.peak_memory_bytes.values()) / GIB,
            generation_npus=step.generation_npus,
            mode=step.mode,
        ),
        error=RlErrors(time=speed_error(prediction)),
        parts={
            name: part / step.step_time_s
            for name, part in sorted(step.breakdown.items(), key=lambda item: (-item[1], item[0]))
            if part > LEAST_PART * step.step_time_s
        },
        diagnoses=tuple(f"{each.path.removeprefix('/')}: {each.text}" for each in prediction.diagnoses),
        warnings=tuple(note.text for note in step.notes),
    )
