"""How a launch lets layers be placed on chunks: the limits that a search keeps to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autodeploy.space.rules import holding, read_rules, scope_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.space.candidates import Candidates
    from autodeploy.space.rules import Conditions
    from autodeploy.specs.broken_rule import BrokenRule


# What a launch target says of one strategy.
@dataclass(frozen=True, slots=True)
class LaunchRules:
    """What the launch target says of a strategy: rules it breaks, memory choices and features it could have.

    stopping : rules with which no launch file is written: the framework stops at them, or none is written past them.
    """

    broken: tuple[BrokenRule, ...]
    memory_choices: frozenset[str]
    features: frozenset[str]
    stopping: tuple[BrokenRule, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Names of the broken rules."""
        return frozenset(rule.rule for rule in self.broken)


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """equal : no chunk is longer than an even share, rounded up. filled : every chunk has a layer.

    whole_groups : a chunk begins with a layer that chooses its keys itself; groups are seldom even, so equal gives way.
    """

    equal: bool
    filled: bool
    whole_groups: bool


@lru_cache(maxsize=64)
def _binding(scope: frozenset[str]) -> Conditions:
    """The limits that bind what a plan is for, with their conditions."""
    return tuple((each["limit"], each["when"]) for each in read_rules()["placement"] if scope & set(each["targets"]))


def placement_limits(candidate: Candidates, facts: Mapping[str, Any], target: str) -> PlacementLimits:
    """The limits of the first candidate."""
    limits = holding(_binding(scope_of(facts, target)), candidate, facts)
    groups = "whole_groups" in limits
    return PlacementLimits("equal" in limits and not groups, "filled" in limits, groups)
