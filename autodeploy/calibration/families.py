"""Families of models: an architecture line without size or spelling. What is left out together is a family.

An overlay keeps what runs said under digests: of the family of the model, and of how it ran.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from hardware_profiles.loader import load_profile
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.record import Record

_SIZE = re.compile(
    r"[-_ ]?\d+(\.\d+)?(x\d+(\.\d+)?)?[bmt](?![a-z])|[-_ ]?\d+point\d+b|[-_ ]a\d+(\.\d+)?b", re.IGNORECASE
)
OF_SOURCES = "Ampere"  # all runs on these chips are of GPT, so a family is a source and a model's name
LINES: dict[str, str] = shipped("autodeploy.calibration", "families.yaml")
"""Families of models by what their names begin with."""
AXES = ("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "micro_batch_size", "schedule")
WORK_AXES = ("tp", "vpp", "cp", "etp", "micro_batch_size", "schedule")
SCALED_DOWN = {
    *("name", "num_hidden_layers", "layer_types", "first_k_dense_replace", "mlp_only_layers"),
    *("n_routed_experts", "n_zero_experts", "n_group", "topk_group"),
}
DIGITS = 16  # of a digest


def family_of(record: Record) -> str:
    """llama2 of LLaMA2-13B and llama2_7b; for GPT on A100 the source and the model's name."""
    name = record.model.name
    if load_profile(record.cluster.profile, calibrated=False).generation == OF_SOURCES:
        return f"{record.id.split('_')[0]}/{name}"
    return family_of_name(name, is_moe=record.model.is_moe)


def family_of_name(name: str, *, is_moe: bool) -> str:
    """The family of a model by its name."""
    text = name.lower()
    for noise in ("pretrain_", "tune_"):
        text = text.removeprefix(noise)
    text = re.sub("[-_. ]", "", _SIZE.sub("", text))
    line = next(filter(text.startswith, LINES), None)
    if line is None:
        return text
    return LINES[line] + ("moe" if is_moe and line.startswith("qwen") else "")


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
