"""Baseline of a launch: a plan, an earlier check, or the script before a change; and what differs from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.script import read_launch
from autodeploy.kit.errors import SpecError
from autodeploy.search.ranking.explanation import explanation
from autodeploy.specs.answers import Changes, FieldChange, MovedPart
from autodeploy.specs.planset import PARTS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.search.planner import Planner
    from autodeploy.specs.planset import Plan

# A part of a step that moves by less of it moved by nothing.
MIN_TOLD_CHANGE = 0.002
# Flags that name a run, not what it does.
NAMES = frozenset({"--save", "--load", "--tensorboard-dir", "--wandb-exp-name", "--wandb-project", "--wandb-save-dir"})


@dataclass(frozen=True, slots=True)
class Baseline:
    """A launch that was good before: its plan, or the launch to predict, and the flags of its script."""

    plan: Plan | None = None
    launch: Launch | None = None
    flags: Mapping[str, str] | None = None
    name: str = ""


def unread_baseline(
    text: str,
    name: str,
    refusal: SpecError,
    variables: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Baseline:
    """The flags of a script that nothing can be predicted of.

    Raises SpecError: the refusal, where the text is no script.
    """
    try:
        script = read_launch(text, variables, folder)
    except SpecError:
        raise refusal from None
    return Baseline(flags={flag.name: flag.text for flag in script.flags.values()}, name=name)


def predicted(baseline: Baseline, planner: Planner) -> Plan | None:
    """The plan of a baseline; None where its launch contradicts itself, so that only its flags can be compared."""
    if baseline.plan is not None or baseline.launch is None:
        return baseline.plan
    try:
        return planner.estimate(baseline.launch.spec)
    except SpecError:
        return None


def changes_between(baseline: Baseline, before: Plan | None, launch: Launch | None, after: Plan | None) -> Changes:
    """Differences: flags where both have a script, else fields of the strategy; parts of a step, and why."""
    flags = None if launch is None else launch.flags
    fields: tuple[FieldChange, ...] = ()
    if baseline.flags is not None and flags is not None:
        fields = _differences(baseline.flags, flags)
    elif before is not None and after is not None:
        fields = _differences(_fields(before), _fields(after))
    if before is None or after is None:
        return Changes(name=baseline.name, fields=fields)
    return Changes(
        name=baseline.name,
        fields=fields,
        moved=_moved(before, after),
        cause="" if before.breakdown == after.breakdown else explanation(before, after),
    )


def flag_changes_between(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> tuple[FieldChange, ...]:
    """Flags that differ, where both have some."""
    return () if before is None or after is None else _differences(before, after)


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """Entries that one has and the other has not, or with another value, in the order of the names."""
    return tuple(
        FieldChange(name=name, before=_shown(before, name), after=_shown(after, name))
        for name in sorted(before.keys() | after.keys())
        if name not in NAMES and before.get(name) != after.get(name)
    )


def _shown(values: Mapping[str, Any], name: str) -> str | None:
    """A value as text; a flag without a value is on."""
    if name not in values or values[name] is None:
        return None
    return str(values[name]) or "on"


def _fields(plan: Plan) -> dict[str, Any]:
    """Fields of a plan's strategy, those that are set."""
    fields = plan.strategy.model_dump(mode="json")
    return {name: value for name, value in fields.items() if value not in (None, [], False)}


def _moved(before: Plan, after: Plan) -> tuple[MovedPart, ...]:
    """Parts of a step that moved, those that moved most first."""
    parts = [
        MovedPart(part=part, before_s=getattr(before.breakdown, part), after_s=getattr(after.breakdown, part))
        for part in PARTS
    ]
    least = MIN_TOLD_CHANGE * before.step_time_s
    moved = [part for part in parts if abs(part.after_s - part.before_s) > least]
    return tuple(sorted(moved, key=lambda part: -abs(part.after_s - part.before_s)))
