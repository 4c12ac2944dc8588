"""Rules that the frameworks' validators hold against a command line, read from flag_rules.yaml."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.formats.megatron.layers import expanded_layout, layers_of_entries
from autodeploy.messages import Message
from autodeploy.space.rules import load_rules
from autodeploy.specs.diagnostics import BrokenRule
from autodeploy.stack.expression import evaluate, names
from autodeploy.stack.features import FEATURES
from autodeploy.stack.padding import first_of_set
from autodeploy.stack.records import blanks, record_text, with_numbers
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.formats.common.launch_script import LaunchScript


# The blank of a sentence for the flags of `require` that are given.
GIVEN = "given"
# A layout: the embedding, decoder layers, prediction layers of one entry, the loss.
OF_SEVERAL: dict[str, Callable[[list[int]], int]] = {
    "count": len,
    "first": first_of_set,
    "greatest": max,
    "product": math.prod,
}
IN_ORDER = re.compile(r"E[t|]*m*\|*L")


@dataclass(frozen=True, slots=True)
class FlagRule:
    """One condition over flags: what must hold where `when` does, and the sentence that says that it does not.

    `component` states it; `without` is a component that replaces the code which does, where a release has it. Each
    may be names of releases instead, with blanks between.
    """

    name: str
    component: str
    require: str
    text: Message
    source: str
    when: str = "True"
    without: str = ""

    def names(self) -> frozenset[str]:
        """Names that the rule reads."""
        return names(self.require) | names(self.when)

    def blanks(self) -> tuple[str, ...]:
        """Values that the sentence tells, in its order."""
        return tuple(name for name in blanks(self.text) if name != GIVEN)

    def numbers(self) -> tuple[str, ...]:
        """Values that are told behind a sentence which has no blanks for any."""
        return tuple(sorted(names(self.require) & {*flag_values(), "world"}))

    def sentence(self, values: Mapping[str, Any], given: str) -> str:
        """Text of the rule broken by a launch that has these values and flags."""
        filled, text = {**values, GIVEN: given}, self.text
        if text.values:
            text = Message(text.key, **{name: term.format_map(filled) for name, term in text.values.items()})
        else:
            text = Message.of_record(text.key, str(text), **filled)
        return text if self.blanks() else with_numbers(text, values)


@dataclass(frozen=True, slots=True)
class FlagValue:
    """Reading of a name of the rules from flags: the first of them that is given, or an expression.

    several : of entries with commas or blanks between them the count, the first that a set of them yields, the
        greatest or the product.
    has : whether this is one of the entries.
    nested : rows, columns or sum of a list of lists.
    layout : of a pipeline's layout the entries, least (layers of an entry), layers, predictors, how many entries from
        the end they start, or whether it is in_order.
    environment : variable of the launch.
    """

    flags: tuple[str, ...] = ()
    default: Any = None
    word: bool = False
    several: str = ""
    has: str = ""
    nested: str = ""
    layout: str = ""
    environment: str = ""
    expression: str = ""


class NotKnown(KeyError):
    """A value that the file does not say."""


@cache
def _document() -> dict[str, Any]:
    return dict(shipped("autodeploy.analysis.launch_checks", "flag_rules.yaml"))


@cache
def flag_rules() -> tuple[FlagRule, ...]:
    """Every rule, in file order; what one leaves out is that of the rule of strategies of its name."""
    of_strategies = {rule.name: rule for rule in load_rules()}
    rules = []
    for row in _document()["rules"]:
        rest = {("component" if key == "from" else key): value for key, value in row.items()}
        if "text" in row:
            rest["text"] = record_text(f"flag_rule.{row['name']}", row["text"])
        if "require" not in row or "text" not in row:
            of_fields = of_strategies[row["name"]]
            if "require" not in row and "when" not in row:
                rest["when"] = of_fields.when or "True"
            rest = {"require": of_fields.require, "text": of_fields.text, **rest}
        rules.append(FlagRule(**rest))
    return tuple(rules)


@cache
def flag_values() -> dict[str, FlagValue]:
    """Names that stand for more than whether a flag is given."""
    values = {}
    for name, row in _document()["values"].items():
        flags = tuple(row.get("flags", [row["flag"]] if "flag" in row else []))
        rest = {key: value for key, value in row.items() if key not in {"flag", "flags"}}
        values[name] = FlagValue(flags, **rest)
    return values


@cache
def words() -> dict[str, str]:
    """Choices as rules write them, and as flags do."""
    document = _document()
    return {**{word: word for word in document["words"]}, **document["fields"]}


class FlagValues(Mapping[str, Any]):
    """Values of the names that rules use in a launch; a name without a known value raises `NotKnown`.

    ranks : processes of the launch; None where nothing says how many.
    generation : of its chips.
    """

    def __init__(self, script: LaunchScript, ranks: int | None, generation: str = "") -> None:
        self._flags, self._environment = script.flags, script.environment
        # Rules ask for the same few names again and again; None: not known.
        self._known: dict[str, Any] = {"world": ranks, "blackwell": generation == "Blackwell"}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            try:
                self._known[name] = self._read(name)
            except NotKnown:
                self._known[name] = None
        if (known := self._known[name]) is None:
            raise NotKnown(name)
        return known

    def _read(self, name: str) -> Any:
        if name in words():
            return words()[name]
        if (feature := FEATURES.get(name.removeprefix("on_"))) is not None and name.startswith("on_"):
            return any(each.flags[0].flag in self._flags for each in feature.launch if each.flags)
        if name.startswith("given_"):
            return self._is_given(name.removeprefix("given_"))
        value = flag_values().get(name)
        return self._is_given(name) if value is None else self._value(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(flag_values())

    def __len__(self) -> int:
        return len(flag_values())

    def _is_given(self, name: str) -> bool:
        return _flag(name) in self._flags

    def _value(self, name: str, value: FlagValue) -> Any:
        if value.expression:
            if name == "dp" and self["world"] % max(self["tp"] * self["pp"] * self["cp"], 1):
                raise NotKnown(name)
            return evaluate(value.expression, self)
        if value.environment:
            return _number(name, self._environment.get(value.environment, ""))
        given = next((self._flags[flag] for flag in value.flags if flag in self._flags), None)
        if given is None:
            return self._default(name, value)
        if given.unknown or not given.values:
            raise NotKnown(name)
        text = given.text.strip("\"' ")
        if value.word:
            if len(given.values) > 1:
                raise NotKnown(name)
            return text
        if value.nested:
            return _of_lists(name, text, value.nested)
        if value.layout:
            return _of_layout(name, text, value.layout)
        entries = text.replace(",", " ").split()
        if value.has:
            return value.has in entries
        if value.several:
            return OF_SEVERAL[value.several]([int(each[:18]) if each.isdigit() else 0 for each in entries] or [0])
        return _number(name, text)

    def _default(self, name: str, value: FlagValue) -> Any:
        if value.default is None:
            raise NotKnown(name)
        if isinstance(value.default, str) and not value.word:
            return evaluate(value.default, self)
        return value.default


def _number(name: str, text: str) -> int | float:
    for number in (int, float):
        with suppress(ValueError):
            value = number(text)
            if isinstance(value, int) or math.isfinite(value):
                return value
    raise NotKnown(name)


def _of_lists(name: str, text: str, wanted: str) -> int:
    """Rows, columns (0 where they differ) or sum of `[[4, 4], [3, 5]]`."""
    try:
        rows = json.loads(text)
        columns = {len(row) for row in rows}
        total = sum(sum(row) for row in rows)
    except (ValueError, TypeError, RecursionError):
        raise NotKnown(name) from None
    return {"rows": len(rows), "columns": columns.pop() if len(columns) == 1 else 0, "sum": total}[wanted]


def _of_layout(name: str, text: str, wanted: str) -> int:
    """Values that `FlagValue.layout` names."""
    plain = expanded_layout(text)
    if plain is None:
        raise NotKnown(name)
    layers, predictors = layers_of_entries(plain), plain[plain.find("m") :] if "m" in plain else ""
    return {
        "entries": len(layers),
        "least": min(layers),
        "layers": sum(layers),
        "predictors": predictors.count("m"),
        "predictors_from_end": predictors.count("|") + 1,
        "in_order": int(IN_ORDER.fullmatch(plain) is not None),
    }[wanted]


@lru_cache(maxsize=64)
def _rules_of(components: frozenset[str]) -> tuple[FlagRule, ...]:
    return tuple(
        rule
        for rule in flag_rules()
        if components & set(rule.component.split()) and not components & set(rule.without.split())
    )


def broken_flag_rules(values: FlagValues, components: frozenset[str]) -> tuple[BrokenRule, ...]:
    """The rules that a launch breaks, with the numbers filled in; components : of a release, and its own name."""
    rules_broken = []
    for rule in _rules_of(components):
        try:
            with np.errstate(divide="raise"):  # by degrees of 0, which are told elsewhere
                broken = bool(evaluate(rule.when, values)) and not bool(evaluate(rule.require, values))
                named_values = {name: plain(values[name]) for name in rule.blanks() or rule.numbers()} if broken else {}
        except (NotKnown, ArithmeticError):  # the latter of numbers that no launch has, which are told elsewhere
            continue
        if broken:
            on = [name for name in sorted(rule.names()) if values.get(name) is True]
            given = ", ".join(_flag(name) for name in on if name in names(rule.require))
            text = rule.sentence(named_values, given)
            if not named_values and not on:
                named_values = {name: plain(values[name]) for name in sorted(rule.names() & flag_values().keys())}
            rules_broken.append(BrokenRule(rule=rule.name, text=text, values=named_values | dict.fromkeys(on, True)))
    return tuple(rules_broken)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def plain(value: Any) -> bool | int | float | str:
    """A value as a document holds it: whole numbers whole."""
    value = value.item() if hasattr(value, "item") else value
    return int(value) if isinstance(value, float) and value.is_integer() else value
