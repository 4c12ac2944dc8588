"""What frameworks of post-training refuse, as data: conditions over the numbers of a launch, each with its source."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from autodeploy.stack.expression import evaluate

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
    text: str
    source: str
    when: str = ""
    engines: tuple[str, ...] = ()

    def is_broken(self, facts: Mapping[str, int], engine: str) -> bool:
        """Whether a launch with these numbers breaks it."""
        if self.engines and engine not in self.engines:
            return False
        return not (self.when and not evaluate(self.when, facts)) and not evaluate(self.require, facts)


@cache
def launch_rules(framework: str) -> tuple[LaunchRule, ...]:
    """The rules of a framework; none where it has none here."""
    text = (files("autodeploy.stack") / "launch_rules.yaml").read_text(encoding="utf-8")
    rows = YAML(typ="safe", pure=True).load(text).get(framework, ())
    return tuple(LaunchRule(**{**row, "engines": tuple(row.get("engines", ()))}) for row in rows)


def broken_rules(framework: str, facts: Mapping[str, int], engine: str) -> list[LaunchRule]:
    """The rules that a launch breaks, in order."""
    return [rule for rule in launch_rules(framework) if rule.is_broken(facts, engine)]
