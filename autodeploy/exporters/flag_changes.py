"""What an author of a launch script adds to it and takes out of it, to turn one plan of a spec into another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from autodeploy.exporters.arguments import ShellVariable, shell_value
from autodeploy.exporters.launch_arguments import Launch, launch_of_spec
from autodeploy.exporters.memory_arguments import BLOCK as RECOMPUTE

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

FLAGGED = frozenset({"mindspeed-llm", "megatron"})
"""Frameworks that are launched with flags; others are configured by a file."""


class FlagChanges(NamedTuple):
    """Flags with their values to be written, and names of flags to be taken out."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def flag_changes(spec: Spec, before: Plan, after: Plan) -> FlagChanges:
    """By which flags two plans of the spec differ; none where its framework takes no flags."""
    target = spec.search.target
    if target not in FLAGGED:
        return FlagChanges()
    first, second = (launch_of_spec(spec, plan, target) for plan in (before, after))
    old, new = _flags(first), _flags(second)
    # Each of these flags says what the others mean (layers of a chunk or of a stage): where one differs, all are told.
    together = _of_block(second, RECOMPUTE) if _of_block(first, RECOMPUTE) != _of_block(second, RECOMPUTE) else {}
    return FlagChanges(
        add=tuple(
            " ".join([flag, *values]) for flag, values in new.items() if old.get(flag) != values or flag in together
        ),
        drop=tuple(flag for flag in old if flag not in new),
    )


def _flags(launch: Launch) -> dict[str, tuple[str, ...]]:
    """Every flag with its values, those of the script's own variables written out."""
    return {flag: values for block in launch.arguments.blocks for flag, values in _of_block(launch, block).items()}


def _of_block(launch: Launch, block: str) -> dict[str, tuple[str, ...]]:
    return {
        flag: tuple(
            str(launch.variables[value.name])
            if isinstance(value, ShellVariable) and value.name in launch.variables
            else shell_value(value)
            for value in values
        )
        for flag, values in launch.arguments.blocks.get(block, [])
    }
