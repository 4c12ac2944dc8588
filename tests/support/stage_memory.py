"""Memory of every pipeline stage against a published dry run: DeepSeek-V3 in MindFormers.

The published figures are what MindSpore's compiler reports for its graph; a figure above the card's capacity is what
the graph would need. No recompute, and one layer of every stage recomputed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.costs.inputs.build_context import profile_of, spec_context
from autodeploy.costs.layers.unit_costs import unit_costs
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import estimate_layout
from autodeploy.costs.steps.one_strategy import candidate_of, layout_of
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.specs.training import BatchSize, TrainingSpec
from autodeploy.stack.frameworks import FRAMEWORKS
from cost_models.hbm import MIB
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from cost_models.arrays import Floats

RECORD = "deepseek_v3_stage_memory.yaml"
RECOMPUTED_LAYERS = (0, 1)  # of every stage, as published
# The record names no operator switch: these are the fusions of compiled graphs and of MindFormers' expert layers. Its
# configuration does not cut the vocabulary over tensor-parallel ranks (vocab_emb_dp).
FEATURES = frozenset(
    {"graph_mode", "flash_attention", "grouped_gemm", "fused_rmsnorm", "fused_swiglu", "whole_vocabulary"}
)

GRAPH_MODE = next(name for name, framework in FRAMEWORKS.items() if framework.graph_mode)


@dataclass(frozen=True)
class StageMemory:
    """Published and predicted allocator bytes of every stage [pp], in MiB."""

    recomputed_layers: int
    published_mib: Floats
    predicted_mib: Floats
    in_flight: Floats

    @property
    def error(self) -> Floats:
        """Predicted over published less one, of every stage [pp]."""
        return np.asarray(self.predicted_mib / self.published_mib - 1.0)

    def slopes_mib(self, first: int, last: int) -> tuple[Floats, Floats]:
        """Published and predicted MiB of one more micro batch in flight, between neighbours of stages first..last.

        Valid where the stages hold equal layers: each holds one micro batch fewer than the one before it.
        """
        stages = slice(first, last + 1)
        return -np.diff(self.published_mib[stages]), -np.diff(self.predicted_mib[stages])


@cache
def published() -> dict[str, Any]:
    """The shipped record as a mapping."""
    text = files("autodeploy.calibration").joinpath("records", RECORD).read_text(encoding="utf-8")
    document: dict[str, Any] = load_shipped_yaml(text)
    return document


def predict_stage_memory(recomputed_layers: int = 0) -> StageMemory:
    """Predict every stage with none or one of its layers recomputed.

    Raises
    ------
    ValueError
        if nothing is published for that number of recomputed layers.
    """
    record = published()
    if recomputed_layers not in RECOMPUTED_LAYERS:
        raise ValueError(f"published for 0 and 1 recomputed layers a stage, not {recomputed_layers}")
    figures = record["one_layer_recomputed_per_stage_mib" if recomputed_layers else "no_recompute_mib"]
    model, training, strategy = _documents(record, recomputed_layers)
    degrees = record["strategy"]
    cluster = ClusterSpec(profile="ascend-800t-a2", num_npus=degrees["dp"] * degrees["tp"] * degrees["pp"])
    spec = Spec(model=model, cluster=cluster, training=training, search=SearchSpec(target=GRAPH_MODE))
    context = spec_context(spec, profile_of(cluster), FEATURES)
    candidate = candidate_of(
        strategy, world=context.world, global_batch=context.global_batch, moe=True, vendor=context.machine.vendor
    )
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    layout = layout_of(strategy, tuple(c.count for c in classes.layers))
    estimate = estimate_layout(Priced(classes, candidate, context), layout)
    return StageMemory(
        recomputed_layers,
        np.asarray(figures, dtype=np.float64),
        np.asarray(estimate.allocator_bytes / MIB),
        estimate.in_flight,
    )


def _documents(record: dict[str, Any], recomputed_layers: int) -> tuple[ModelSpec, TrainingSpec, Strategy]:
    """The record as a model, a training run and a strategy.

    Routing is even: the compiler sizes every expert's buffer by its capacity.
    """
    given, trained, degrees = record["model"], record["training"], record["strategy"]
    model = load_preset(given["preset"]).model_copy(
        update={name: value for name, value in given.items() if name != "preset"}
    )
    batch = degrees["dp"] * trained["micro_batch_size"] * trained["micro_batches"]
    training = TrainingSpec(
        seq_length=trained["seq_length"],
        global_batch_size=BatchSize(value=batch),
        precision=trained["precision"],
        norm_precision=trained["norm_precision"],
        routing_imbalance=1.0,
        routing_imbalance_peak=1.0,
    )
    layers = list(record["layers_per_stage"])
    layers[-1] -= model.num_nextn_predict_layers  # printed with the prediction module as a layer
    strategy = Strategy(
        tp=degrees["tp"],
        pp=degrees["pp"],
        dp=degrees["dp"],
        ep=degrees["ep"],
        etp=1,
        micro_batch_size=trained["micro_batch_size"],
        sequence_parallel=degrees["sequence_parallel"],
        layers_per_stage=tuple(layers),
        recompute=Recompute(granularity="full", num_layers=recomputed_layers) if recomputed_layers else Recompute(),
    )
    return model, training, strategy


def stage_table() -> str:
    """Predicted against published GiB of every stage as a Markdown table, as in docs/explanation/memory.md."""
    runs = [predict_stage_memory(layers) for layers in RECOMPUTED_LAYERS]
    lines = [
        "| stage | in flight | published | predicted | error | one recomputed: published | predicted | error |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for stage, flying in enumerate(runs[0].in_flight):
        cells = [str(stage), f"{flying:.0f}"]
        for run in runs:
            sizes = (run.published_mib[stage] / 1024.0, run.predicted_mib[stage] / 1024.0)
            cells += [*(f"{size:.1f}" for size in sizes), f"{100.0 * run.error[stage]:+.1f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
