"""Collectives around a multiplication that is cut by columns over the tensor-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from autodeploy.workload.operators import Exchange

if TYPE_CHECKING:
    from autodeploy.workload.operators import OperatorFeatures, Sharding, Window
    from cost_models.arrays import Floats


def cut_and_whole(shard: Sharding) -> tuple[Floats, Floats]:
    """Where inputs are cut between tensor-parallel regions, and where they are whole [n]: 1 or 0."""
    several = shard.tp > 1
    return (
        np.where(shard.sequence_parallel & several, 1.0, 0.0),
        np.where(~shard.sequence_parallel & several, 1.0, 0.0),
    )


def column_exchanges(
    shard: Sharding, name: str, window: Window, input_bytes: Floats, first: str, on: OperatorFeatures
) -> list[Exchange]:
    """Collectives of the input of `first`, `input_bytes` of all tokens of the group.

    With sequence parallelism the input is gathered; backward it is gathered again behind the input's gradient, which is
    scattered behind the weight's. Without, the gradient alone is reduced behind the weight's.
    Source: Megatron-LM tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication.

    Plain PyTorch keeps what it gathered, and returns the input's gradient when both gradients of every product of this
    input are there, so that none hides it. Source: torch/distributed/tensor/_redistribute.py, Redistribute.backward;
    torchtitan, PrepareModuleInput of attention and feed_forward.
    """
    cut, whole = cut_and_whole(shard)
    again = np.zeros_like(cut) if on.torch_modules else cut
    behind: Literal["", "weight_gradient"] = "" if on.torch_modules else "weight_gradient"
    return [
        Exchange(f"{name}_gather", "gather", window, input_bytes, cut, 0.0, beside=first),
        Exchange(f"{name}_regather", "gather", window, input_bytes, 0.0, again, beside=first, behind="input_gradient"),
        Exchange(f"{name}_gradient_scatter", "scatter", window, input_bytes, 0.0, cut, beside=first, behind=behind),
        Exchange(f"{name}_gradient_reduce", "reduce", window, input_bytes, 0.0, whole, beside=first, behind=behind),
    ]
