"""What an author of a launch script adds to it and takes out of it, to turn one plan of a spec into another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from autodeploy.exporters.arguments import ShellVariable, shell_value
from autodeploy.exporters.launch_arguments import Launch, launch_of_spec
from autodeploy.exporters.memory_arguments import BLOCK as RECOMPUTE
from autodeploy.stack.frameworks import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

# Ways to say which layers are where: they exclude each other, and the number of layers counts those that do nothing.
PLACEMENT = frozenset(
    {
        "--num-layers",
        "--noop-layers",
        "--num-layers-per-virtual-pipeline-stage",
        "--num-virtual-stages-per-pipeline-rank",
        "--pipeline-model-parallel-layout",
        "--num-layer-list",
        "--pipeline-num-transformer-layers",
        "--decoder-first-pipeline-num-layers",
        "--decoder-last-pipeline-num-layers",
    }
)


class FlagChanges(NamedTuple):
    """Flags with their values to be written, and names of flags to be taken out."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def flag_changes(spec: Spec, before: Plan, after: Plan, written: Mapping[str, str] | None = None) -> FlagChanges:
    """By which flags two plans of the spec differ; none where its framework takes no flags.

    Parameters
    ----------
    written : flags of the author's script with their values: what it has already is not added, and what it does not
        have is not taken out. None: the script is as an export of `before` would be.
    """
    target = spec.search.target
    if FRAMEWORKS[target].configured_by != "flags":
        return FlagChanges()
    first, second = (launch_of_spec(spec, plan, target) for plan in (before, after))
    old, new = _flags(first), _flags(second)
    # Each of these flags says what the others mean (layers of a chunk or of a stage): where one differs, all are told.
    together = _of_block(second, RECOMPUTE) if _of_block(first, RECOMPUTE) != _of_block(second, RECOMPUTE) else {}
    add = {flag: values for flag, values in new.items() if old.get(flag) != values or flag in together}
    drop = [flag for flag in old if flag not in new]
    if written is not None:
        if PLACEMENT & {*add, *drop}:
            add |= {flag: values for flag, values in new.items() if flag in PLACEMENT}
            drop += [flag for flag in written if flag in PLACEMENT and flag not in new and flag not in drop]
        add = {flag: values for flag, values in add.items() if written.get(flag) != " ".join(values)}
        drop = [flag for flag in drop if flag in written]
    return FlagChanges(add=tuple(" ".join([flag, *values]) for flag, values in add.items()), drop=tuple(drop))


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
