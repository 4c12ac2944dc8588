"""Which memory choices a candidate may use under its launch target."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.space.rules import holding, values_of
from autodeploy.stack.expression import evaluate
from autodeploy.stack.frameworks import UNRESTRICTED
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.space.candidates import Candidates
    from autodeploy.stack.features import Stack
    from cost_models.arrays import Bools

FACT = "memory_choices"  # choice -> the condition under which the release launches it


@dataclass(frozen=True, slots=True)
class MemoryVariant:
    """How a component launches a choice: all `flags` have to be registered; `when` says for which strategies."""

    component: str
    flags: tuple[str, ...] = ()
    when: str = "True"

    def fits(self, stack: Stack) -> bool:
        """Whether a release has the component and registers its flags."""
        return stack.has(self.component) and all(stack.registers(flag) for flag in self.flags)


@lru_cache(maxsize=1)
def memory_variants() -> dict[str, tuple[MemoryVariant, ...]]:
    """Every choice with the variants that launch it."""
    text = files("autodeploy.space").joinpath("memory_rules.yaml").read_text(encoding="utf-8")
    table: dict[str, list[dict[str, Any]]] = load_shipped_yaml(text)["choices"]
    return {name: tuple(_variant(**row) for row in rows) for name, rows in table.items()}


def _variant(component: str, flags: tuple[str, ...] = (), when: str = "True") -> MemoryVariant:
    return MemoryVariant(component, tuple(flags), when)


def launched_choices(stack: Stack | None) -> dict[str, str]:
    """The choices that a release has flags for, each with its condition; none without a release."""
    if stack is None:
        return {}
    first = {name: next((each for each in rows if each.fits(stack)), None) for name, rows in memory_variants().items()}
    return {name: each.when for name, each in first.items() if each is not None}


def launchable(candidate: Candidates, facts: Mapping[str, Any], target: str) -> frozenset[str]:
    """Memory choices that `target` can launch with one candidate; every choice where no framework is meant."""
    if target == UNRESTRICTED:
        return frozenset(memory_variants())
    return holding(tuple(facts[FACT].items()), candidate, facts)


def launchable_each(candidates: Candidates, facts: Mapping[str, Any], target: str) -> dict[str, Bools]:
    """Whether `target` can launch each memory choice with each candidate [n]."""
    n, values = len(candidates), values_of(candidates, facts)
    if target == UNRESTRICTED:
        return {name: np.ones(n, dtype=np.bool_) for name in memory_variants()}
    never = np.zeros(n, dtype=np.bool_)
    conditions = facts[FACT]
    return {
        name: np.broadcast_to(np.asarray(evaluate(conditions[name], values), dtype=np.bool_), (n,))
        if name in conditions
        else never
        for name in memory_variants()
    }
