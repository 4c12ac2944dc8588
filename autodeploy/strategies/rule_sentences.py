"""A broken rule in words, with the numbers of the strategy that breaks it."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.messages import Message, Section
from autodeploy.messages.catalogue import catalogue
from autodeploy.specs.check import BrokenRule
from autodeploy.strategies.candidates import CP_ALGOS, DISPATCHERS, SCHEDULES
from autodeploy.strategies.rules import WORDS
from autodeploy.strategies.schedule_columns import LAUNCHED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.strategies.rules import Rule

OF_REPLICAS = frozenset({"dp", "micro_batches"})
CHOICES = {"schedule": SCHEDULES, "moe_dispatcher": DISPATCHERS, "cp_algo": CP_ALGOS}


_SENTENCE = Section("broken_rule")


def _blanks(rule: str) -> tuple[str, ...]:
    """What the sentence of a rule reads; empty without one."""
    if rule not in _SENTENCE:
        return ()
    return tuple(name for _, name, *_ in string.Formatter().parse(catalogue("en")[f"broken_rule.{rule}"]) if name)


def told(broken: Sequence[Rule], values: Mapping[str, Any]) -> tuple[BrokenRule, ...]:
    """Broken rules in words.

    Where the ranks do not divide there is no number of replicas, and rules that read it say nothing.
    """
    if any(rule.name == "world_divides" for rule in broken):
        broken = [rule for rule in broken if rule.name == "world_divides" or not rule.names() & OF_REPLICAS]
    return tuple(sentence_of(rule, values) for rule in broken)


def sentence_of(rule: Rule, values: Mapping[str, Any]) -> BrokenRule:
    """The rule as the one candidate of `values` breaks it."""
    read = {name: _plain(name, values[name]) for name in sorted(rule.names() - {*WORDS, LAUNCHED})}
    numbers = {name: value for name, value in read.items() if value is not False}
    if rule.name in _SENTENCE:
        blanks = {name: _plain(name, values[name]) for name in _blanks(rule.name)}
        return BrokenRule(rule=rule.name, text=Message(f"broken_rule.{rule.name}", **blanks), values=blanks | numbers)
    told = ", ".join(f"{name} {value}" for name, value in numbers.items() if value is not True)
    text = Message("common.text_and_numbers", text=rule.text, numbers=told) if told else rule.text
    return BrokenRule(rule=rule.name, text=text, values=numbers)


def where_known(rule: str, text: str, known: Mapping[str, Any]) -> str:
    """The sentence of a rule where `known`, axes by name and facts, fills all of its blanks; else its text with those
    that are known.
    """
    blanks = _blanks(rule)
    values = {name: _plain(name, known[name]) for name in blanks if known.get(name) is not None}
    if blanks and len(values) == len(set(blanks)):
        return Message(f"broken_rule.{rule}", **values)
    numbers = ", ".join(f"{name} {value}" for name, value in values.items())
    return Message("common.text_and_numbers", text=text, numbers=numbers) if numbers else text


def _plain(name: str, value: Any) -> bool | int | float | str:
    """The value of one candidate as a document holds it; choices by name."""
    if isinstance(value, frozenset):
        return ", ".join(sorted(value))
    number = np.asarray(value).reshape(-1)[0].item()
    return str(CHOICES[name][number]) if name in CHOICES else number
