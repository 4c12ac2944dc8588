"""Which memory choices the search may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.strategies.memory_rules import launchable
from autodeploy.workload.memory_choices import CHOICES

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.strategies.candidates import Candidates

WHOLE = "full"
"""The choice that recomputes a whole layer."""


def memory_choices(candidate: Candidates, context: Context) -> frozenset[str]:
    """Memory choices a candidate may use: launchable, and not switched off."""
    return launchable(candidate, context.facts, context.target) & possible_choices(context)


def menus(choices: frozenset[str]) -> tuple[frozenset[str], ...]:
    """What a candidate's problems choose from: all, and all but whole layers, which take the workspace of one more."""
    return (choices, choices - {WHOLE}) if WHOLE in choices else (choices,)


def possible_choices(context: Context) -> frozenset[str]:
    """Memory choices that are not switched off, whatever the candidate."""
    allowed = frozenset(CHOICES)
    if "selective_recompute" not in context.mechanisms:
        allowed &= frozenset({WHOLE, "swap_attention", "swap_unpermute", "swap_moe"})
    if "selective_swap" not in context.mechanisms:
        allowed -= {"swap_unpermute", "swap_moe"}
    if "swap_attention" not in context.mechanisms:
        allowed -= {"swap_attention"}
    return allowed
