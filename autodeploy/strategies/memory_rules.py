"""Which memory choices a candidate may use under its launch target."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from ruamel.yaml import YAML

from autodeploy.stack.expression import evaluate
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.strategies.rules import values_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.strategies.candidates import Bools, Candidates


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, str]]:
    text = files("autodeploy.strategies").joinpath("memory_rules.yaml").read_text(encoding="utf-8")
    table: dict[str, dict[str, str]] = YAML(typ="safe").load(text)["choices"]
    return table


def launchable(candidate: Candidates, facts: Mapping[str, Any], target: str) -> frozenset[str]:
    """Memory choices that `target` can launch with one candidate; every choice under target any."""
    if target == UNRESTRICTED:
        return frozenset(_table())
    values = values_of(candidate, facts)
    return frozenset(
        name for name, rules in _table().items() if target in rules and bool(np.all(evaluate(rules[target], values)))
    )


def launchable_each(candidates: Candidates, facts: Mapping[str, Any], target: str) -> dict[str, Bools]:
    """Whether `target` can launch each memory choice with each candidate [n]."""
    n, values = len(candidates), values_of(candidates, facts)
    if target == UNRESTRICTED:
        return {name: np.ones(n, dtype=np.bool_) for name in _table()}
    never = np.zeros(n, dtype=np.bool_)
    return {
        name: np.broadcast_to(np.asarray(evaluate(rules[target], values), dtype=np.bool_), (n,))
        if target in rules
        else never
        for name, rules in _table().items()
    }
