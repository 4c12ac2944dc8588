"""Models that torchtitan-npu has by name and flavor, by the preset of the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from autodeploy.specs.presets import load_preset
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec

# Converters of fused operators, by the feature that each is; the order of the public configurations.
CONVERTERS: Final = (("fused_rmsnorm", "npu_rms_norm"), ("fused_operators", "npu_permute"), ("grouped_gemm", "npu_gmm"))
ROTARY: Final = "npu_rope"
SPARSE: Final = "npu_dsa"
# What a name and a flavor leave to other keys.
_OPEN = {"name", "recipe", "num_nextn_predict_layers"}


@dataclass(frozen=True, slots=True)
class TorchtitanModel:
    """One model.

    preset : of the same shape. name, flavor : `model.name`, `model.flavor`. predicts : it takes `num_mtp_modules`.
    """

    preset: str
    name: str
    flavor: str
    predicts: bool = False


@cache
def torchtitan_models() -> tuple[TorchtitanModel, ...]:
    """All of them, the one that public configurations use before others of its shape."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return tuple(TorchtitanModel(**row) for row in load_shipped_yaml(text))


def torchtitan_model_of(model: ModelSpec) -> TorchtitanModel | None:
    """The one of the model's shape; None where there is none."""
    shape = model.model_dump(exclude=_OPEN)
    for each in torchtitan_models():
        if load_preset(each.preset).model_dump(exclude=_OPEN) == shape:
            return each
    return None


def preset_of_flavor(name: str, flavor: str) -> TorchtitanModel | None:
    """The model of that name and flavor; None where no preset has its shape."""
    return next((each for each in torchtitan_models() if (each.name, each.flavor) == (name, flavor)), None)
