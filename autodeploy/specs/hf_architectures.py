"""Architectures of Hugging Face `config.json` files, of `hf_architectures.yaml`: names and sizes that their code fixes.

A key that is looked up under several names is taken from the first that the file has. `fixed` holds what no key says
because the architecture's code does it, such as the query and key norms of Qwen3; `recipe` likewise, of what only the
launch has to say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autodeploy.messages import Message
from autodeploy.specs.attention import COMPRESSED
from autodeploy.specs.diagnostics import NO_EFFECT
from hardware_profiles.shipped_yaml import shipped

_TABLES = shipped("autodeploy.specs", "hf_architectures.yaml")
KEYS, RECIPE_KEYS, RECIPE_KEYS_OF_EXPERTS = (
    {name: tuple(keys) for name, keys in _TABLES[table].items()}
    for table in ("keys", "recipe_keys", "recipe_keys_of_experts")
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """One family of `architectures` values. `keys` replaces the names of some fields."""

    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    out_bias: bool = False  # attention_bias is of the output projection too
    gated: bool = True
    halves_intermediate: bool = False  # the key counts gate and up together
    tied_by_default: bool = False
    known: bool = True
    refused: str = ""  # what all of its models have, be it by defaults of its class, and is not modelled
    reads: frozenset[str] = frozenset()  # mechanisms by their key, which others refuse
    defaults: dict[str, Any] = field(default_factory=dict)  # of keys that its files leave out
    full_every: int = 0  # layers, of which the last sees everything and the others have a window

    @property
    def layer_kinds(self) -> frozenset[Any]:
        """Kinds of layers that its files may name beside those of every architecture."""
        linear = {"linear_attention"} if "linear_num_value_heads" in self.reads else set()
        if "compress_ratios" in self.reads:
            return COMPRESSED
        return frozenset(linear | ({"chunked_attention"} if "attention_chunk_size" in self.reads else set()))

    def names(self, field: str) -> tuple[str, ...]:
        """The keys under which this architecture may hold the field, in order of precedence."""
        return self.keys.get(field, KEYS[field])


def _family(row: dict[str, Any]) -> Architecture:
    lists = {"keys": {name: tuple(keys) for name, keys in row.get("keys", {}).items()}}
    recipe = {k: tuple(map(tuple, v)) if isinstance(v, list) else v for k, v in row.get("recipe", {}).items()}
    refused = Message(row["refused"]) if "refused" in row else ""
    reads = frozenset(row.get("reads", ()))
    return Architecture(**{**row, **lists, "recipe": recipe, "refused": refused, "reads": reads})


_FAMILIES = {name: _family(row) for name, row in _TABLES["families"].items()}
UNKNOWN = Architecture(known=False)
ARCHITECTURES = {name: _FAMILIES[family] for name, family in _TABLES["classes"].items()}
MODEL_TYPES: dict[str, str] = _TABLES["model_types"]
NOT_MODELLED: dict[str, str] = {
    key: Message(said) if "." in said else said for key, said in _TABLES["not_modelled"].items()
}
# Layers by their kind: of these, each value but the attention that is modelled.
LAYER_KINDS: dict[str, frozenset[Any]] = {
    "layer_types": frozenset({"full_attention", "sliding_attention"}),
    "attn_type_list": frozenset({1, "attention", "full_attention"}),  # MiniMax: 0 is lightning (linear) attention
}
TELLING, HARMLESS = tuple(_TABLES["telling"]), tuple(_TABLES["harmless"])
CHECK = Message("importers.unknown_key")
IGNORED: dict[str, str] = {
    **dict.fromkeys(_TABLES["without_effect"], NO_EFFECT),
    **dict.fromkeys(_TABLES["of_precision"], Message("importers.follows_from", what="training.precision")),
    **dict.fromkeys(_TABLES["not_predicted"], Message("importers.not_predicted")),
}
