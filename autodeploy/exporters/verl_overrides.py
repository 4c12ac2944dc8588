"""Overrides of verl's configuration, and how flags of Megatron-LM and MindSpeed become some of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autodeploy.exporters.arguments import LaunchArguments, Value
    from autodeploy.stack.releases import Release

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
# Mappings that verl hands on; a key that they don't have yet is added (`++`).
OPEN = (
    f"{MEGATRON}.override_transformer_config.",
    f"{MEGATRON}.override_ddp_config.",
    f"{ACTOR}.optim.override_optimizer_config.",
)
# Arguments whose field in Megatron-LM's classes has another name (megatron/training/arguments.py, `dest`).
FIELDS = {"microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage"}


@dataclass(slots=True)
class Overrides:
    """Keys with their values, in named arrays of the script."""

    arrays: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, array: str, prefix: str, **values: Any) -> None:
        """Adds keys under a prefix; what is None is left to verl's default."""
        given = {f"{prefix}.{name}" if prefix else name: value for name, value in values.items() if value is not None}
        self.arrays.setdefault(array, {}).update(given)

    def pairs(self) -> dict[str, Any]:
        """All keys with their values."""
        return {name: value for array in self.arrays.values() for name, value in array.items()}

    def text(self) -> str:
        """Bash arrays, an override a line."""
        return "\n".join(
            f"{name}=(\n" + "".join(f"    {_line(key, value)}\n" for key, value in keys.items()) + ")\n"
            for name, keys in self.arrays.items()
            if keys
        )


def _line(key: str, value: Any) -> str:
    plus = "++" if key.startswith(OPEN) else ""
    if isinstance(value, str) and "$" in value:
        return f'{plus}{key}="{value}"'
    if isinstance(value, bool):
        return f"{plus}{key}={value}"
    if isinstance(value, list):
        return f"'{plus}{key}=[{','.join(map(str, value))}]'"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return (
        f"{plus}{key}={text}"
        if text.replace(".", "").replace("-", "").replace("_", "").isalnum()
        else f"'{plus}{key}=\"{text}\"'"
    )


def handed_on(arguments: LaunchArguments) -> dict[str, Any]:
    """The arguments as keys of the mappings that verl hands on; `--no-x` is x: false."""
    places = _places(arguments.release)
    handed: dict[str, Any] = {}
    for flag, values in (line for lines in arguments.blocks.values() for line in lines):
        argument = flag.removeprefix("--").replace("-", "_")
        name = FIELDS.get(argument, argument)
        if name in places:
            handed[places[name]] = _value(arguments.release, flag, values)
        else:
            handed[places[name.removeprefix("no_")]] = False
    return handed


def _places(release: Release) -> dict[str, str]:
    """Last part -> path of every key of the open mappings, the transformer's first."""
    places: dict[str, str] = {}
    for prefix in OPEN:
        for name in release.keys:
            if name.startswith(prefix):
                places.setdefault(name.removeprefix(prefix), name)
    return places


def _value(release: Release, flag: str, values: tuple[Value, ...]) -> Any:
    registered = release.flags[flag]
    if registered.type == "flag":
        return True
    typed = [_typed(registered.type, value) for value in values]
    return typed if registered.nargs else typed[0]


def _typed(kind: str, value: Value) -> Any:
    if kind == "int":
        return int(str(value))
    return float(str(value)) if kind == "float" else value
