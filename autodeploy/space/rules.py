"""Legality rules as data: read once, applied as array masks with reject counts; sentences, launch limits, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from autodeploy.kit.errors import FieldError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.space.candidates import AXES, CP_ALGOS, DISPATCHERS, Candidates, of_schedules
from autodeploy.specs.diagnostics import BrokenRule
from autodeploy.stack.expression import conjuncts, evaluate, is_met, names
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.stack.memory_choices import MEMORY_CHOICES
from autodeploy.stack.records import read_records, record_text, with_numbers
from cost_models.schedule import SCHEDULES, schedule, schedules
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autodeploy.specs.spec import Spec
    from autodeploy.stack.features import AskedFor
    from autodeploy.stack.releases import Release
    from cost_models.arrays import Bools


LAUNCHED: Final = "launched_schedules"
"""The fact that says which schedules a release launches."""

_ATTRIBUTES: Final = {
    "paired": "pairs",
    "folded": "folded",
    "copies": "copies",
    "least_chunks": "least_chunks",
    "most_chunks": "most_chunks",
    "one_stage": "one_stage",
}


def _least_micro_batches(schedule: Any, pp: Any) -> Any:
    schedule, pp = np.broadcast_arrays(schedule, pp)
    least = np.ones(schedule.shape, dtype=np.int64)
    for place, each in enumerate(schedules()):
        of_schedule = schedule == place
        if of_schedule.any():
            least = np.where(of_schedule, each.least_micro_batches(pp), least)
    return least


def _launched(schedule: Any, names: frozenset[str] | None) -> Any:
    return np.array([names is None or each.name in names for each in schedules()])[schedule]


# Name of each column -> the axes, or the fact, that it follows from, and how.
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Any]]]] = {
    **{
        name: (("schedule",), lambda schedule, attribute=attribute: of_schedules(attribute, schedule))
        for name, attribute in _ATTRIBUTES.items()
    },
    "least_micro_batches": (("schedule", "pp"), _least_micro_batches),
    "launched": (("schedule", LAUNCHED), _launched),
}
COLUMNS: Final = frozenset(_COLUMNS)


def axes_behind(names: Iterable[str]) -> frozenset[str]:
    """The names with the axes that columns of schedules follow from in the columns' place."""
    read: set[str] = set()
    for name in names:
        read |= set(_COLUMNS[name][0]) if name in _COLUMNS else {name}
    return frozenset(read)


def with_columns(values: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """The values with those columns of schedules that are named and not there yet."""
    wanted = [name for name in names if name in _COLUMNS and name not in values]
    if not wanted:
        return values
    columns = dict(values)
    for name in wanted:
        axes, column = _COLUMNS[name]
        columns[name] = column(*(values[axis] for axis in axes))
    return columns


class Words(Mapping[str, int]):
    """Names of choices as rules write them, with their places: the schedules that are registered, and others."""

    def __init__(self, others: Mapping[str, int]) -> None:
        self._others = others

    def __getitem__(self, word: str) -> int:
        return self.places()[word]

    def places(self) -> dict[str, int]:
        """All of them, read from the registry once."""
        return {**self._others, **{each.word or each.name: place for place, each in enumerate(schedules())}}

    def __iter__(self) -> Iterator[str]:
        return iter((*(each.word or each.name for each in schedules()), *self._others))

    def __len__(self) -> int:
        return len(schedules()) + len(self._others)


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
        return np.asarray(is_met(self.require, self.when, values), dtype=bool)

    def said(self, known: Mapping[str, Any]) -> str:
        """The rule in words, with the numbers that it tells of what is known."""
        return with_numbers(self.text, {name: known[name] for name in self.tells})

    def names(self) -> frozenset[str]:
        """Axes and facts that the rule reads, also those that its columns of schedules follow from."""
        return axes_behind(self._words())

    def _words(self) -> frozenset[str]:
        return names(self.require) | names(self.when)

    def parts(self) -> tuple[Rule, ...]:
        """Rules of fewer names each, which all hold where this one does."""
        return tuple(replace(self, require=text) for text in conjuncts(self.require))


def scope_of(facts: Mapping[str, Any], target: str) -> frozenset[str]:
    """Scopes of rules and limits for a plan's target: arithmetic, its release and components."""
    if target == UNRESTRICTED:
        return frozenset({ARITHMETIC})
    return frozenset({ARITHMETIC, RELEASED, *facts["released"]})


def load_rules() -> tuple[Rule, ...]:
    """All rules in file order, then those of features that a spec asks for: the first that rejects is the reason."""
    return _all_rules(tuple((name, feature.asked_for) for name, feature in FEATURES.items() if feature.asked_for))


@lru_cache(maxsize=8)
def _all_rules(asked: tuple[tuple[str, AskedFor], ...]) -> tuple[Rule, ...]:
    rows = read_rules()["rules"]
    said = (record_text(f"rule.{row['name']}", row["text"]) for row in rows)
    own = read_records(Rule, (row | {"text": text} for row, text in zip(rows, said, strict=True)))
    return (*own, *_asked_rules(asked))


def _asked_rules(asked: tuple[tuple[str, AskedFor], ...]) -> Iterator[Rule]:
    """Requirements of a strategy where the spec switches a feature on; features with one condition share a rule."""
    for rule in dict.fromkeys(rule for _, rule in asked):
        when = " or ".join(f"asked_{name}" for name, other in asked if other == rule)
        yield Rule(rule.name, (ARITHMETIC,), rule.require, rule.text, rule.source, when, PLANNED)


@lru_cache(maxsize=1)
def read_rules() -> dict[str, Any]:
    """The file of rules: `rules` over candidates and limits on their `placement`."""
    document: dict[str, Any] = shipped("autodeploy.space", "rules.yaml")
    return document


@dataclass(frozen=True, slots=True)
class Verdict:
    """Legal candidates, and the number that each rule rejected first."""

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


# What a launch target says of one strategy.
@dataclass(frozen=True, slots=True)
class LaunchRules:
    """Rules of the launch target on a strategy: those it breaks, memory choices and features it could have.

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


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """equal : no chunk is longer than an even share, rounded up. filled : every chunk has a layer.

    whole_groups : a chunk begins with a layer that chooses its keys itself; groups are seldom even, so equal gives way.
    """

    equal: bool
    filled: bool
    whole_groups: bool


@lru_cache(maxsize=64)
def _binding(scope: frozenset[str]) -> Conditions:
    """The limits that bind what a plan is for, with their conditions."""
    return tuple((each["limit"], each["when"]) for each in read_rules()["placement"] if scope & set(each["targets"]))


def placement_limits(candidate: Candidates, facts: Mapping[str, Any], target: str) -> PlacementLimits:
    """The limits of the first candidate."""
    limits = holding(_binding(scope_of(facts, target)), candidate, facts)
    groups = "whole_groups" in limits
    return PlacementLimits("equal" in limits and not groups, "filled" in limits, groups)


FACT = "memory_choices"  # choice -> the condition under which the release launches it


def launched_choices(stack: Release | None) -> dict[str, str]:
    """The choices that a release has flags for, each with its condition; none without a release."""
    if stack is None:
        return {}
    first = {n: next((each for each in row.launch if each.fits(stack)), None) for n, row in MEMORY_CHOICES.items()}
    return {name: each.when or "True" for name, each in first.items() if each is not None}


def launchable(candidate: Candidates, facts: Mapping[str, Any], target: str) -> frozenset[str]:
    """Memory choices that `target` can launch with one candidate; every choice where no framework is meant."""
    if target == UNRESTRICTED:
        return frozenset(MEMORY_CHOICES)
    return holding(tuple(facts[FACT].items()), candidate, facts)


def launchable_each(candidates: Candidates, facts: Mapping[str, Any], target: str) -> dict[str, Bools]:
    """Whether `target` can launch each memory choice with each candidate [n]."""
    n, values = len(candidates), values_of(candidates, facts)
    if target == UNRESTRICTED:
        return {name: np.ones(n, dtype=np.bool_) for name in MEMORY_CHOICES}
    never = np.zeros(n, dtype=np.bool_)
    conditions = facts[FACT]
    return {
        name: np.broadcast_to(np.asarray(evaluate(conditions[name], values), dtype=np.bool_), (n,))
        if name in conditions
        else never
        for name in MEMORY_CHOICES
    }


def refuse_unmodelled(spec: Spec) -> None:
    """Refuse everything in a spec that would have no effect.

    Raises UnsupportedError with each field that is not modelled yet.
    """
    training, search = spec.training, spec.search
    refusals = [
        (
            "/training/kind",
            training.kind not in {"pretrain", "sft", "dpo"},
            Message("strategies.this_question_about", kind=training.kind),
            Message("strategies.specs_with_strategy"),
        ),
    ]
    for field in ("fix", "allow"):
        wanted = getattr(search, field).get("schedule", ())
        names = wanted if isinstance(wanted, tuple) else (wanted,)
        unknown = [name for name in names if not schedule(str(name)).searched]
        refusals.append(
            (
                f"/search/{field}/schedule",
                bool(unknown),
                Message("strategies.search_over", names=", ".join(map(str, unknown))),
                Message("strategies.prefer_dualpipev"),
            )
        )
    errors = [
        FieldError(path, Message("common.is_not_modelled_yet", what=what), hint)
        for path, asked, what, hint in refusals
        if asked
    ]
    if errors:
        raise UnsupportedError(errors=tuple(errors))
