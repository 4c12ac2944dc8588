"""A broken rule in words, with the numbers of the strategy that breaks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.space.candidates import CP_ALGOS, DISPATCHERS
from autodeploy.space.rules import WORDS, load_rules
from autodeploy.space.schedule_columns import LAUNCHED
from autodeploy.specs.broken_rule import BrokenRule
from autodeploy.stack.record_texts import with_numbers
from cost_models.schedule import SCHEDULES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.space.rules import Rule

OF_REPLICAS = frozenset({"dp", "micro_batches"})
CHOICES = {"schedule": SCHEDULES, "moe_dispatcher": DISPATCHERS, "cp_algo": CP_ALGOS}


def told(broken: Sequence[Rule], values: Mapping[str, Any]) -> tuple[BrokenRule, ...]:
    """Broken rules in words.

    Where the ranks do not divide there is no number of replicas, and rules that read it say nothing.
    """
    if any(rule.name == "world_divides" for rule in broken):
        broken = [rule for rule in broken if rule.name == "world_divides" or not rule.names() & OF_REPLICAS]
    return tuple(sentence_of(rule, values) for rule in broken)


def sentence_of(rule: Rule, values: Mapping[str, Any]) -> BrokenRule:
    """The rule as the one candidate of `values` breaks it."""
    read = {name: _plain(name, values[name]) for name in sorted({*rule.names(), *rule.tells} - {*WORDS, LAUNCHED})}
    numbers = {name: value for name, value in read.items() if value is not False}
    return BrokenRule(rule=rule.name, text=with_numbers(rule.text, numbers), values=numbers)


def where_known(rule: str, text: str, values: Mapping[str, Any]) -> str:
    """The sentence of a rule with what is known of the numbers that it reads: axes by name, and facts."""
    read = next((each.names() for each in load_rules() if each.name == rule), frozenset[str]()) - {LAUNCHED}
    return with_numbers(text, {name: _plain(name, values[name]) for name in sorted(read & values.keys())})


def _plain(name: str, value: Any) -> bool | int | float | str:
    """The value of one candidate as a document holds it; choices by name."""
    if isinstance(value, frozenset):
        return ", ".join(sorted(value))
    if isinstance(value, str):
        return value
    number = np.asarray(value).reshape(-1)[0].item()
    return str(CHOICES[name][number]) if name in CHOICES else number
