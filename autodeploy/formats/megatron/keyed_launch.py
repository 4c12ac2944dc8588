"""Megatron-LM's settings as keys of a YAML document: FlagScale's tasks, and tables of whole flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.launch_script import SHAPE, LaunchScript, environment_variables
from autodeploy.formats.megatron.post_training_launch import flags_of_keys, lines_of_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

# Sections of FlagScale's tasks, whose keys are Megatron's words; source: FlagScale @da4935ec, examples/*/conf/train.
SECTIONS = ("system", "model", "data")
ROUNDED = frozenset({"multiple_of", "hidden_dim_multiplier"})
# Of Megatron-MoE-ModelZoo's tables of flags; source: @e8650517, model_configs/benchmarking.
VARIABLES = "ENV_VARS"


def is_keyed(document: Mapping[str, Any]) -> bool:
    """Whether the keys of a document say the shape of a model in Megatron's words, or as its flags."""
    return flags_of_keys(_settings(document), {}).keys() >= SHAPE


def keyed_launch(document: Mapping[str, Any], text: str, variables: Mapping[str, str]) -> LaunchScript:
    """The launch that a document describes.

    Parameters
    ----------
    text : the document, for the lines of its keys.
    variables : values of `${NAME}`; of one that is not there the flags stay unknown.
    """
    environment, recognised = document.get(VARIABLES), environment_variables()
    settings = environment.items() if isinstance(environment, Mapping) else ()
    return LaunchScript(
        program="",
        flags=flags_of_keys(_settings(document), lines_of_keys(text), variables),
        is_spelled=_is_task(document),
        environment={name: str(value) for name, value in settings if name in recognised},
        given=variables,
    )


def _is_task(document: Mapping[str, Any]) -> bool:
    return all(isinstance(document.get(section), Mapping) for section in SECTIONS)


def _settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting by its last key: below FlagScale's sections, or written as a flag anywhere."""
    if _is_task(document):
        return _with_width({key: value for section in SECTIONS for key, value in _leaves(document[section])})
    return {key: value for key, value in _leaves(document) if key.startswith("--")}


def _with_width(settings: dict[str, Any]) -> dict[str, Any]:
    """A task's settings with the width of a gated MLP that FlagScale rounds up to `multiple_of`.

    References
    ----------
    FlagScale @da4935ec flagscale/runner/auto_tuner/utils.py:183.
    """
    multiple, width = settings.get("multiple_of"), settings.get("hidden_size")
    if not (isinstance(multiple, int) and multiple > 0 and isinstance(width, int)) or "ffn_hidden_size" in settings:
        return settings
    wide = int(int(8 * width / 3) * (settings.get("hidden_dim_multiplier") or 1))
    gated = {"ffn_hidden_size": -(-wide // multiple) * multiple} if settings.get("swiglu") else {}
    return {key: value for key, value in settings.items() if key not in ROUNDED} | gated


def _leaves(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner)
        else:
            yield str(key), inner
