"""The recipe of a Hugging Face `config.json`, besides the model's shape: carried to the launch script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_args

from autodeploy.messages import Message
from autodeploy.specs.diagnostics import NO_EFFECT
from autodeploy.specs.hf_architectures import RECIPE_KEYS, RECIPE_KEYS_OF_EXPERTS
from autodeploy.specs.recipe import RopeScaling, RopeType, ScoringFunction, TopkMethod
from autodeploy.specs.synonyms import words_of_fields

if TYPE_CHECKING:
    from autodeploy.specs.hf_config import Reader

NOT_CARRIED = Message("importers.not_carried_over")

CHOICES: dict[str, tuple[str, ...]] = {"scoring_func": get_args(ScoringFunction), "topk_method": get_args(TopkMethod)}
DTYPES = {"float32": "fp32", "fp32": "fp32", "float64": "fp64", "fp64": "fp64"}
# Keys of rope_scaling that say nothing which the others don't, or what is not asked of a launch.
_SILENT = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "attention_factor", "finetuned"})


def read_recipe(reader: Reader, *, has_experts: bool) -> dict[str, Any]:
    """The `recipe` of the model: what the file says, then what the architecture's code fixes."""
    recipe = _given(reader, RECIPE_KEYS)
    recipe |= _rope(reader, recipe)
    experts = _given(reader, RECIPE_KEYS_OF_EXPERTS)
    experts |= _router(reader)
    fixed = dict(reader.architecture.recipe)
    if has_experts:
        recipe |= experts
    else:
        for field, value in experts.items():
            reader.forget(_name(field), value, NO_EFFECT)
        fixed = {field: value for field, value in fixed.items() if field not in {*RECIPE_KEYS_OF_EXPERTS, *CHOICES}}
    if recipe.get("attention_bias") and reader.architecture.out_bias:
        recipe["attention_out_bias"] = True
    ratio = recipe.pop("rope_ratio", None)
    if isinstance(ratio, int | float) and not isinstance(ratio, bool):
        recipe["rope_theta"] = 10_000 * ratio
    for field, value in fixed.items():
        if field not in recipe:
            reader.log.default(_name(field), value, Message("importers.default_of", framework="Hugging Face"))
    return fixed | recipe


def _given(reader: Reader, keys: dict[str, tuple[str, ...]]) -> dict[str, Any]:
    """Fields that the file has, each under the first of its keys."""
    found = {field: _first(reader, field, names) for field, names in keys.items()}
    return {field: value for field, value in found.items() if value is not None}


def _name(field: str) -> str:
    return f"recipe/{field}"


def _first(reader: Reader, field: str, names: tuple[str, ...]) -> Any:
    """The value under the first of the names that the file has; the others are compared with it."""
    value = None
    for key in names:
        raw = reader.raw(key)
        if raw is None:
            continue
        if isinstance(raw, list | Mapping):
            reader.log.unmodelled(reader.at(key), raw, NOT_CARRIED)
        elif value is None:
            value = raw
            reader.took(_name(field), key, raw)
        elif raw != value:
            reader.contradicts(_name(field), key, raw, value)
    return value


def _router(reader: Reader) -> dict[str, Any]:
    router: dict[str, Any] = {}
    for field, choices in CHOICES.items():
        value = reader.raw(field)
        if value in choices:
            router[field] = value
            reader.took(_name(field), field, value)
        elif value is not None:
            reader.log.unmodelled(reader.at(field), value, NOT_CARRIED)
    for key in words_of_fields()["/model/recipe/topk_method"]:
        if reader.raw(key) is True:
            router["topk_method"] = "noaux_tc"
            reader.took(_name("topk_method"), key, True)
    dtype = reader.raw("moe_router_dtype")
    if dtype in DTYPES:
        router["router_dtype"] = DTYPES[str(dtype)]
        reader.took(_name("router_dtype"), "moe_router_dtype", dtype)
    elif dtype is not None:
        reader.log.unmodelled(reader.at("moe_router_dtype"), dtype, NOT_CARRIED)
    return router


def _rope(reader: Reader, recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Base and scaling of rotary positions, from `rope_scaling`, newer `rope_parameters` or GLM's `rope_ratio`."""
    rope: dict[str, Any] = {}
    ratio = reader.raw("rope_ratio")
    if ratio is not None and "rope_theta" not in recipe:
        rope["rope_ratio"] = ratio
        reader.took(_name("rope_theta"), "rope_ratio", ratio)
    for key in ("rope_parameters", "rope_scaling"):
        given = reader.raw(key)
        if not given:
            continue
        if not isinstance(given, Mapping):
            reader.log.unmodelled(reader.at(key), given, NOT_CARRIED)
            continue
        for field in ("rope_theta", "partial_rotary_factor"):
            if field in given and field not in recipe:
                rope[field] = given[field]
        scaling = _scaling(given)
        if scaling is None:
            reader.log.unmodelled(reader.at(key), given, NOT_CARRIED)
        else:
            reader.took(_name("rope_scaling"), key, given)
            rope |= {"rope_scaling": scaling} if scaling else {}
    return rope


def _scaling(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scaling in the recipe's words, empty where there is none; None where it can't be said."""
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return {} if not given.keys() - _SILENT else None
    fields = set(RopeScaling.model_fields)
    if kind == "su":
        kind = "longrope"
    if kind not in get_args(RopeType) or given.keys() - fields - _SILENT:
        return None
    taken = {key: value for key, value in given.items() if key in fields and value is not None}
    return {**taken, "rope_type": kind}
