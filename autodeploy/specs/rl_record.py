"""A measured step of post-training, in the words of a spec and of what its source says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from autodeploy.messages import Message
from autodeploy.messages.field_faults import FieldFault
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.generation import layout_read, profile_read
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.record_reading import Diagnosis, ReadOtherwise
from autodeploy.specs.rl import RlStrategy, RlTraining, TokenCount
from autodeploy.specs.strategy import Strategy
from hardware_profiles.magnitudes import Seconds, TokensPerSecond


class RlMeasured(Document):
    """What was measured of a step. Throughput per card, counted by the record's `token_count`."""

    step_time_s: Seconds | None = None
    tokens_per_s_per_npu: TokensPerSecond | None = None
    generation_s: Seconds | None = None
    log_probabilities_s: Seconds | None = None
    reference_s: Seconds | None = None
    update_s: Seconds | None = None
    hand_over_s: Seconds | None = None


class RlRecordTraining(Document):
    """What the step generated and trained on."""

    kind: Literal["rl_post_training"]
    precision: Literal["bf16", "fp16", "fp8"] = "bf16"
    rl: RlTraining


class RlRecord(Document):
    """One step of post-training that somebody measured.

    What its source leaves out is as its framework has it, or the best that fits: see
    autodeploy/post_training/framework_defaults.yaml.
    """

    id: str
    source: str
    framework: str = "unknown"
    date: str | None = None
    confidence: str = "unknown"
    model: ModelSpec
    cluster: ClusterSpec
    training: RlRecordTraining
    strategy: Strategy
    measured: RlMeasured
    token_count: TokenCount = "mean"
    notes: str = ""
    diagnoses: ReadOtherwise = ()

    @model_validator(mode="before")
    @classmethod
    def _in_our_words(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        diagnoses: list[Diagnosis] = []
        read = dict(value)
        if isinstance(cluster := read.get("cluster"), Mapping) and isinstance(name := cluster.get("profile"), str):
            read["cluster"] = {**cluster, "profile": profile_read(name, diagnoses)}
        if isinstance(strategy := read.get("strategy"), Mapping) and isinstance(rl := strategy.get("rl"), Mapping):
            if isinstance(layout := rl.get("generation"), Mapping):
                rl = {**rl, "generation": layout_read(layout, diagnoses, "/strategy/rl/generation")}
            read["strategy"] = {**strategy, "rl": rl}
        for part, field_names in (("", cls.model_fields), ("measured", RlMeasured.model_fields)):
            fields = read.get(part) if part else read
            if isinstance(fields, Mapping):
                unknown = sorted(str(name) for name in fields if name not in field_names)
                diagnoses += [
                    Diagnosis(path=f"/{part}/{name}".replace("//", "/"), text=Message("specs.not_read"))
                    for name in unknown
                ]
                kept = {name: each for name, each in fields.items() if name in field_names}
                read = {**read, part: kept} if part else kept
        return {**read, "diagnoses": (*read.get("diagnoses", ()), *diagnoses)} if diagnoses else read

    @model_validator(mode="after")
    def _says_how_it_generates(self) -> RlRecord:
        if self.strategy.rl is None:
            raise FieldFault(Message("common.is_required", name="strategy.rl"), "strategy: {rl: {generation: ...}}")
        if self.measured.step_time_s is None and self.measured.tokens_per_s_per_npu is None:
            raise FieldFault(
                Message("common.at_least_one_of", names="measured.step_time_s, measured.tokens_per_s_per_npu")
            )
        return self

    @property
    def layout(self) -> RlStrategy:
        """Placement and generation."""
        assert self.strategy.rl is not None
        return self.strategy.rl
