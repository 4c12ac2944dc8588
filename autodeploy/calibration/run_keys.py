"""Under which digests an overlay keeps what runs said: the family of the model, and how it ran."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.families import family_of_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.model import ModelSpec

AXES = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "micro_batch_size", "schedule")
WORK_AXES = ("tp", "vpp", "cp", "etp", "micro_batch_size", "schedule")
SCALED_DOWN = {
    *("name", "num_hidden_layers", "layer_types", "first_k_dense_replace", "mlp_only_layers"),
    *("n_routed_experts", "n_zero_experts", "n_group", "topk_group"),
}
DIGITS = 16


def family_digest(model: ModelSpec) -> str:
    """Of the family of a model; dense models and those with experts are two."""
    return _digest(family_of_name(model.name, is_moe=model.is_moe), str(model.is_moe))


def configuration_digest(model: ModelSpec, seq_length: int, axes: Mapping[str, Any]) -> str:
    """Of a model's sizes, its sequence length and the axes of a strategy, whatever it recomputes."""
    sizes = model.model_dump_json(exclude={"name"})
    return _digest(sizes, str(seq_length), *(str(axes[name] or 1) for name in AXES))


def work_digest(model: ModelSpec, seq_length: int, axes: Mapping[str, Any]) -> str:
    """Of the work of a rank: a model's layers but not their number, its experts of a rank but not all of them, the
    sequence length, and the axes that no rehearsal changes.
    """
    layer = model.model_dump_json(exclude=SCALED_DOWN)
    experts = (model.n_routed_experts or 0) // int(axes["ep"] or 1)
    return _digest(layer, str(experts), str(seq_length), *(str(axes[name] or 1) for name in WORK_AXES))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]
