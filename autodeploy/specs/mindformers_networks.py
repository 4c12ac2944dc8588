"""Networks that MindFormers trains from keys, and the one that computes a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from autodeploy.specs.attention import ATTENTION_KINDS
from autodeploy.stack.expression import evaluate
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Network:
    """A network by the names that MindFormers builds it by.

    experts : key of the number of routed experts. of : what a model must be, as an expression.
    fixed : fields of a model that the network's code sets.
    """

    model_type: str
    architectures: str
    experts: str
    of: str
    fixed: Mapping[str, Any] = field(default_factory=dict)


@cache
def networks() -> tuple[Network, ...]:
    """Every network, as the table has them."""
    table = _table()
    return tuple(Network(**row | {"of": f"({table['every']}) and {row['of']}"}) for row in table["networks"])


def network_of(model: ModelSpec) -> Network | None:
    """The network that computes the model; None where MindFormers trains none."""
    recipe = model.told
    values = {
        "pre_norm": model.norm_layout == "pre",
        "rotates_whole_heads": not model.learned_position_embeddings
        and (model.attention.own_positions or recipe.partial_rotary_factor in {None, 1.0}),
        **{kind.name: kind is model.attention for kind in ATTENTION_KINDS},
        "moe": model.is_moe,
        "qk_norm": model.qk_norm,
        "tied": model.tie_word_embeddings,
        "predicts": model.num_nextn_predict_layers > 0,
        "dense_layers": bool(model.is_moe and (model.first_k_dense_replace or model.mlp_only_layers)),
    }
    return next((each for each in networks() if evaluate(each.of, values)), None)


def _table() -> dict[str, Any]:
    text = (files("autodeploy.specs") / "mindformers_networks.yaml").read_text(encoding="utf-8")
    table: dict[str, Any] = load_shipped_yaml(text)
    return table
