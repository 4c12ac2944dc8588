"""How a launch lets layers be placed on chunks: the limits that a search keeps to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.stack.expression import evaluate, names
from autodeploy.strategies.rules import read_rules, scope_of, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.strategies.candidates import Candidates


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """equal : no chunk is longer than an even share, rounded up. filled : every chunk has a layer.

    whole_groups : a chunk begins with a layer that chooses its keys itself; groups are seldom even, so equal gives way.
    """

    equal: bool
    filled: bool
    whole_groups: bool


@dataclass(frozen=True, slots=True)
class _Limit:
    limit: str
    targets: tuple[str, ...]
    when: str
    source: str


@lru_cache(maxsize=1)
def _limits() -> tuple[_Limit, ...]:
    return tuple(_Limit(**{**row, "targets": tuple(row["targets"])}) for row in read_rules()["placement"])


def placement_limits(candidate: Candidates, facts: Mapping[str, Any], target: str) -> PlacementLimits:
    """The limits of one candidate."""
    scope = scope_of(facts, target)
    binding = [each for each in _limits() if not scope.isdisjoint(each.targets)]
    values = values_of(candidate, facts, {name for each in binding for name in names(each.when)})
    found = {each.limit for each in binding if bool(np.all(evaluate(each.when, values)))}
    groups = "whole_groups" in found
    return PlacementLimits("equal" in found and not groups, "filled" in found, groups)
