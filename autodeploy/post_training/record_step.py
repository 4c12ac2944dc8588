"""Prediction of a measured step: what its source leaves out is as its framework has it, or what fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, gcd, hypot
from typing import TYPE_CHECKING, Any

from autodeploy.evaluation.inputs.build_context import profile_of
from autodeploy.messages import Message
from autodeploy.post_training.infeasible import InfeasibleRlError
from autodeploy.post_training.overheads import defaults_of, overheads_of
from autodeploy.post_training.rl_step import rl_step
from autodeploy.post_training.step import MEAN_HALF_WIDTH
from autodeploy.specs.record_reading import Diagnosis
from autodeploy.specs.strategy import Recompute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.post_training.overheads import Overheads
    from autodeploy.post_training.step import RlStep
    from autodeploy.specs.rl import RlStrategy, RlTraining
    from autodeploy.specs.rl_record import RlRecord
    from autodeploy.specs.strategy import Strategy

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


def predict_rl(record: RlRecord, overheads: Overheads | None = None) -> RlPrediction:
    """The step of a record. overheads : in place of those of its framework.

    Raises
    ------
    SpecError
        if it can't have run as the record says.
    """
    diagnoses: list[Diagnosis] = list(record.diagnoses)
    defaults = defaults_of(record.framework)
    rl = _training(record, defaults, diagnoses)
    layout = _layout(record, defaults, rl, diagnoses)
    strategy = record.strategy.model_copy(update={"rl": None})
    profile, adds = profile_of(record.cluster), overheads or overheads_of(record.framework)
    try:
        step = rl_step(record.model, profile, record.cluster, rl, strategy, layout, overheads=adds)
    except InfeasibleRlError as error:
        if error.rule != MEMORY_RULE or "recompute" in record.strategy.model_fields_set:
            raise
        strategy = strategy.model_copy(update={"recompute": Recompute(granularity="full")})
        diagnoses.append(_note("/strategy/recompute", Message("post_training.not_published_read_as", value="full")))
        step = rl_step(record.model, profile, record.cluster, rl, strategy, layout, overheads=adds)
    if record.training.rl.response_length.mean_is_assumed:
        step = replace(step, half_width=hypot(step.half_width, MEAN_HALF_WIDTH))
    return RlPrediction(record, rl, strategy, layout, step, tuple(diagnoses))


def _note(path: str, text: str) -> Diagnosis:
    return Diagnosis(path=path, text=text)


def _training(record: RlRecord, defaults: Mapping[str, Any], diagnoses: list[Diagnosis]) -> RlTraining:
    rl = record.training.rl
    update: dict[str, Any] = {}
    share, prompt, response = float(defaults["mean_to_max"]), rl.prompt_length, rl.response_length
    if response.mean_is_assumed:
        mean = share * response.max_tokens
        update["response_length"] = response.model_copy(update={"mean": mean})
        diagnoses.append(
            _note(
                "/training/rl/response_length/mean", Message("post_training.not_published_read_as", value=f"{mean:.0f}")
            )
        )
    if prompt.mean is None:
        mean = share * prompt.max_tokens
        update["prompt_length"] = prompt.model_copy(update={"mean": mean})
        diagnoses.append(
            _note(
                "/training/rl/prompt_length/mean", Message("post_training.not_published_read_as", value=f"{mean:.0f}")
            )
        )
    elif defaults.get("cap_counts_prompt") and response.max is not None and response.mean is not None:
        most = max(ceil(response.mean), response.max - round(prompt.mean))
        update["response_length"] = response.model_copy(update={"max": most})
    most_samples = defaults.get("update_samples")
    if most_samples and "updates_per_step" not in rl.model_fields_set and rl.samples > most_samples:
        updates = gcd(rl.samples // most_samples, rl.prompts_per_step)
        update["updates_per_step"] = updates
        diagnoses.append(
            _note("/training/rl/updates_per_step", Message("post_training.not_published_read_as", value=updates))
        )
    return rl.model_copy(update=update)


def _layout(record: RlRecord, defaults: Mapping[str, Any], rl: RlTraining, diagnoses: list[Diagnosis]) -> RlStrategy:
    layout = record.layout
    update: dict[str, Any] = {}
    if layout.placement == "colocated" and "offload" not in layout.model_fields_set:
        update["offload"] = tuple(defaults["offload"])
        diagnoses.append(
            _note(
                "/strategy/rl/offload",
                Message("post_training.not_published_read_as", value=", ".join(defaults["offload"])),
            )
        )
    if layout.pack_tokens is None and "pack_tokens" not in layout.model_fields_set:
        longest = ceil(rl.prompt_length.mean_tokens + rl.response_length.max_tokens)
        update["pack_tokens"] = int(defaults["pack_samples"]) * record.strategy.micro_batch_size * longest
        diagnoses.append(
            _note(
                "/strategy/rl/pack_tokens", Message("post_training.not_published_read_as", value=update["pack_tokens"])
            )
        )
    engine = layout.generation
    usual = {"mode": defaults.get("mode"), "memory_fraction": defaults.get("memory_fraction", {}).get(layout.placement)}
    of_engine = {name: usual[name] for name in usual if getattr(engine, name) is None and usual[name] is not None}
    if of_engine:
        update["generation"] = engine.model_copy(update=of_engine)
        for name, value in of_engine.items():
            diagnoses.append(
                _note(f"/strategy/rl/generation/{name}", Message("post_training.not_published_read_as", value=value))
            )
    return layout.model_copy(update=update)
