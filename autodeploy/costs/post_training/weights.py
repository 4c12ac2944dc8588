"""Layouts of a model's weights in training and in generation, and the cost of bringing them over."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.workload.generation import FUSED, sharding
from autodeploy.costs.workload.layers import embedding_table, head_table, layer_kinds, layer_table
from cost_models.collectives import tier_rate
from cost_models.hand_over import WeightLayout, colocated_bytes, recast_s, reshard_s, send_s

if TYPE_CHECKING:
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.rl import GenerationLayout

# That move at a time. Source: verl, update_weights_bucket_megabytes of rollout.checkpoint_engine.
BUCKET_BYTES = 512.0 * 2.0**20
GENERATED_BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "w8a8": 1.0}


@lru_cache(maxsize=64)  # asked of one model for every layout that generates with it
def parameters_of(model: ModelSpec) -> tuple[float, float]:
    """Parameters outside and inside routed experts, prediction modules not counted: generation has none."""
    whole, dense, experts = sharding(1, 1), 0.0, 0.0
    for kind, count in layer_kinds(model):
        table = layer_table(model, whole, FUSED, kind)
        dense += count * float(np.max(table.dense_params))
        experts += count * float(np.max(table.expert_params))
    ends = head_table(model, whole, FUSED).dense_params + embedding_table(model, whole, FUSED).dense_params
    return dense + float(np.max(ends)), experts


def generating_weights(model: ModelSpec, layout: GenerationLayout) -> WeightLayout:
    """The weights of a replica: the dense part cut by tp, experts over their group or cut by tp."""
    dense, experts = parameters_of(model)
    return WeightLayout(
        dense=dense,
        experts=experts,
        tensor=float(layout.tp),
        pipeline=1.0,
        expert=float(layout.ep if layout.ep > 1 else layout.tp),
        weight_bytes=GENERATED_BYTES[layout.precision],
    )


def resharded_s(
    trained: WeightLayout, generating: WeightLayout, machine: Machine, dies: int, *, whole: bool = False
) -> float:
    """Seconds of a colocated hand-over on `dies` dies; parts of the weights lie where they are needed.

    whole : each die receives all of the model, a bucket at a time, and keeps what it needs.

    Slices lie in each other where one tensor-parallel degree divides the other: the groups of generation are laid out
    so (HybridFlow, arXiv:2409.19256, section 5).
    """
    tensor, pipeline = int(trained.tensor), int(trained.pipeline)
    received = replace(generating, tensor=1.0, expert=1.0) if whole else generating
    needed = int(received.tensor)
    nested = 1.0 if max(tensor, needed) % min(tensor, needed) == 0 else 0.0
    groups = {
        "tensor": machine.group(1, tensor),
        "expert": machine.group(1, int(trained.expert)),
        "pipeline": machine.group(max(1, dies // pipeline), pipeline),
    }
    moved = {n: b for n, b in colocated_bytes(trained, received, nested).items() if float(groups[n].size) > 1.0}
    seconds = reshard_s(moved, groups, machine.tiers, BUCKET_BYTES)
    return float(seconds) + _recast_s(trained, generating, machine)


def sent_s(
    trained: WeightLayout,
    generating: WeightLayout,
    machine: Machine,
    trainers: int,
    replicas: float,
    *,
    whole: bool = False,
) -> float:
    """Seconds until all replicas on dies of their own have the weights: each trainer sends what it holds to all.

    machine : of trainers and generators together, trainers first. whole : one trainer gathers all and sends it, and
    replicas pass it on.
    """
    tier, senders = machine.tier_of(trainers), 1.0 if whole else float(trainers)
    rate = float(tier_rate(tier, float(trainers + 1)))
    share = float(trained.weight_bytes) / float(generating.weight_bytes)
    seconds = send_s(
        float(trained.model_bytes), float(generating.die_bytes) * share, replicas, senders, rate, forwarded=whole
    )
    buckets = np.ceil(float(generating.die_bytes) * share / BUCKET_BYTES)
    starts = buckets * (float(np.max(tier.latency_s)) + float(np.max(tier.start_s)))
    return float(seconds) + float(starts) + _recast_s(trained, generating, machine)


def _recast_s(trained: WeightLayout, generating: WeightLayout, machine: Machine) -> float:
    """Seconds to bring a die's weights into the format of generation."""
    params = float(generating.die_bytes) / float(generating.weight_bytes)
    rate = float(np.max(machine.rates.hbm_bytes_per_s * np.asarray(machine.rates.hbm_fraction)))
    return float(recast_s(params, trained.weight_bytes, generating.weight_bytes, rate))
