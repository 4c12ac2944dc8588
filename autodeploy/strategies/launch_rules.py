"""What a launch target says of one strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.specs.broken_rule import BrokenRule


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
