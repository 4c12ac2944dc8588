"""Legality rules as data: read from rules.yaml once, applied as array masks with reject counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from autodeploy.space.candidates import AXES, CP_ALGOS, DISPATCHERS, Candidates
from autodeploy.space.schedule_columns import COLUMNS, Words, axes_behind, with_columns
from autodeploy.stack.expression import conjuncts, evaluate, names
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.stack.record_texts import record_texts
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autodeploy.messages import Message
    from autodeploy.stack.features import AskedFor
    from cost_models.arrays import Bools

Conditions: TypeAlias = tuple[tuple[str, str], ...]
"""Names, and what has to hold for each; of a name that comes twice, either."""

# Names of choices as rules write them.
WORDS: Words = Words(
    {
        **{name: index for index, name in enumerate(DISPATCHERS)},
        **{f"{name}_cp": index for index, name in enumerate(CP_ALGOS)},
    }
)


ARITHMETIC, RELEASED = "arithmetic", "released"
PLANNED = "planned"
HELD_BY_FRAMEWORK = frozenset({"refused", "later"})  # by the framework
FAILS_A_CHECK = HELD_BY_FRAMEWORK | {"costly"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One named condition.

    targets : "arithmetic" if it holds for every plan, "released" for every release; components and names of releases.
    kind : who holds it; see the head of rules.yaml. why : where that needs a word. tells : facts told with it.
    """

    name: str
    targets: tuple[str, ...]
    require: str
    text: Message
    source: str
    when: str = ""
    kind: str = "refused"
    why: str = ""
    tells: tuple[str, ...] = ()

    @property
    def is_told(self) -> bool:
        """Whether a launch that breaks it fails a check: it does not train, or at a loss that nobody means."""
        return self.kind in FAILS_A_CHECK

    @property
    def stops(self) -> bool:
        """Whether no launch file is written of what breaks it: the framework holds it, or its plans are kept to it."""
        return self.kind in HELD_BY_FRAMEWORK or (self.kind == PLANNED and ARITHMETIC not in self.targets)

    def binds(self, scope: frozenset[str]) -> bool:
        """Whether the rule holds for what a plan is for; see `scope_of`."""
        return not scope.isdisjoint(self.targets)

    def mask(self, values: Mapping[str, Any]) -> Bools:
        """True where a candidate obeys the rule."""
        values = with_columns(values, self._words())
        obeyed = np.asarray(evaluate(self.require, values), dtype=bool)
        if self.when:
            obeyed = obeyed | ~np.asarray(evaluate(self.when, values), dtype=bool)
        return obeyed

    def names(self) -> frozenset[str]:
        """Axes and facts that the rule reads, also those that its columns of schedules follow from."""
        return axes_behind(self._words())

    def _words(self) -> frozenset[str]:
        return names(self.require) | (names(self.when) if self.when else frozenset())

    def parts(self) -> tuple[Rule, ...]:
        """Rules of fewer names each, which all hold where this one does."""
        return tuple(replace(self, require=text) for text in conjuncts(self.require))


def scope_of(facts: Mapping[str, Any], target: str) -> frozenset[str]:
    """What rules and limits may be aimed at where a plan is for a target: arithmetic, its release and components."""
    if target == UNRESTRICTED:
        return frozenset({ARITHMETIC})
    return frozenset({ARITHMETIC, RELEASED, *facts["released"]})


def load_rules() -> tuple[Rule, ...]:
    """All rules in file order, then those of features that a spec asks for: the first that rejects is the reason."""
    return _all_rules(tuple((name, feature.asked_for) for name, feature in FEATURES.items() if feature.asked_for))


@lru_cache(maxsize=8)
def _all_rules(asked: tuple[tuple[str, AskedFor], ...]) -> tuple[Rule, ...]:
    rows = read_rules()["rules"]
    said = record_texts({f"rule.{row['name']}": row["text"] for row in rows})
    own = (
        Rule(**row | {"targets": tuple(row["targets"]), "tells": tuple(row.get("tells", ())), "text": text})
        for row, text in zip(rows, said, strict=True)
    )
    return (*own, *_asked_rules(asked))


def _asked_rules(asked: tuple[tuple[str, AskedFor], ...]) -> Iterator[Rule]:
    """What a strategy has to have where the spec switches a feature on; features with one condition share a rule."""
    for rule in dict.fromkeys(rule for _, rule in asked):
        when = " or ".join(f"asked_{name}" for name, other in asked if other == rule)
        yield Rule(rule.name, (ARITHMETIC,), rule.require, rule.text, rule.source, when, PLANNED)


@lru_cache(maxsize=1)
def read_rules() -> dict[str, Any]:
    """The file of rules: `rules` over candidates and limits on their `placement`."""
    text = files("autodeploy.space").joinpath("rules.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = load_shipped_yaml(text)
    return document


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which candidates are legal and how many each rule rejected first."""

    legal: Bools
    rejected: dict[str, int]


def values_of(candidates: Candidates, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a rule may name."""
    return dict(with_columns({**WORDS.places(), **facts, **candidates.columns()}, COLUMNS))


def values_read(candidates: Candidates, facts: Mapping[str, Any], read: Iterable[str]) -> dict[str, Any]:
    """Of everything a rule may name, what is read."""
    named, words = axes_behind(read), WORDS.places()
    values = {name: words[name] for name in named & words.keys()}
    values |= {name: facts[name] for name in named & facts.keys()}
    values |= {name: getattr(candidates, name) for name in named.intersection(AXES)}
    return dict(with_columns(values, read))


def holding(conditions: Conditions, candidate: Candidates, facts: Mapping[str, Any]) -> frozenset[str]:
    """Names of those conditions that hold for the first candidate."""
    read = _names_read(conditions)
    values = values_read(candidate, facts, read)
    return _holding(conditions, tuple(np.ravel(values[name])[0].item() for name in read))


@lru_cache(maxsize=64)
def _names_read(conditions: Conditions) -> tuple[str, ...]:
    return tuple(sorted({name for _, when in conditions for name in names(when)}))


@lru_cache(maxsize=1024)
def _holding(conditions: Conditions, values: tuple[Any, ...]) -> frozenset[str]:
    """values : of the names that the conditions read, in order."""
    values_by_name = dict(zip(_names_read(conditions), values, strict=True))
    return frozenset(name for name, when in conditions if bool(evaluate(when, values_by_name)))


def judge(candidates: Candidates, facts: Mapping[str, Any], target: str) -> Verdict:
    """Apply every rule that binds the target."""
    values = values_of(candidates, facts)
    legal = np.ones(len(candidates), dtype=bool)
    rejected: dict[str, int] = {}
    scope = scope_of(facts, target)
    for rule in load_rules():
        if not rule.binds(scope):
            continue
        obeyed = rule.mask(values)
        dead = legal & ~obeyed
        count = int(np.count_nonzero(dead))
        if count:
            rejected[rule.name] = count
            legal &= obeyed
    return Verdict(legal, rejected)


def broken_rules(candidates: Candidates, facts: Mapping[str, Any], target: str) -> list[list[Rule]]:
    """For each candidate, every rule it breaks."""
    values, scope = values_of(candidates, facts), scope_of(facts, target)
    broken: list[list[Rule]] = [[] for _ in range(len(candidates))]
    for rule in load_rules():
        if not rule.binds(scope) or (obeyed := rule.mask(values)).all():
            continue
        for index in np.flatnonzero(~np.broadcast_to(obeyed, (len(candidates),))):
            broken[index].append(rule)
    return broken
