"""Refusals of frameworks of post-training, as data: conditions over the numbers of a launch, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.stack.expression import is_met, names
from autodeploy.stack.records import Text, read_records, record_text
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class LaunchRule:
    """A condition that a launch has to meet.

    when : of the launches, those that it holds for; empty: all. engines : of generation that it is of; empty: any.
    source : file of the framework's repository, with the function or line.
    """

    name: str
    require: str
    text: Text
    source: str
    when: str = ""
    engines: tuple[str, ...] = ()

    @property
    def reads(self) -> frozenset[str]:
        """The numbers of a launch that it is about."""
        return names(self.require) | names(self.when)


@cache
def launch_rules(framework: str) -> tuple[LaunchRule, ...]:
    """The rules of a framework; none where it has none here."""
    rows = shipped("autodeploy.stack", "launch_rules.yaml").get(framework, ())
    said = (record_text(f"launch_rule.{framework}.{row['name']}", row["text"]) for row in rows)
    return read_records(LaunchRule, (row | {"text": text} for row, text in zip(rows, said, strict=True)))


def broken_rules(framework: str, facts: Mapping[str, int], engine: str = "") -> list[LaunchRule]:
    """The rules that a launch breaks, in order.

    facts : what is known of the launch; rules about anything else are left out. engine : that generates; empty: not
        known yet, so that rules of single engines are left out.
    """
    of_engine = (rule for rule in launch_rules(framework) if not rule.engines or engine in rule.engines)
    known = (rule for rule in of_engine if rule.reads <= facts.keys())
    return [rule for rule in known if not is_met(rule.require, rule.when, facts)]


def launched_values(framework: str, axis: str, given_facts: Mapping[str, int], most: int) -> tuple[int, ...]:
    """Values of an axis from 1 to `most` that break no rule of the framework on that axis and what is known."""
    values = np.arange(1, most + 1)
    fits = np.ones(most, dtype=bool)
    for rule in launch_rules(framework):
        if axis in rule.reads and rule.reads <= {axis, *given_facts} and not rule.engines:
            fits &= is_met(rule.require, rule.when, {**given_facts, axis: values})
    return tuple(values[fits].tolist())
