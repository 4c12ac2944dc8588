"""The features a strategy can switch on, one record each: what they need, exclude and cost, and who launches them how.

The records are YAML under `features/`, a file an area. `numerics` says how a feature changes training results: exact
(bit for bit the same sums), reordered (the same sums in another order) or lossy. Names and groups are the vocabulary of
specs, plans and records. Whether a release can launch a feature follows from the flags that it registers.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from autodeploy.stack.records import Said, Text, known, read_records, record_text
from hardware_profiles.shipped_yaml import load_shipped_yaml, shipped_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autodeploy.stack.releases import Release

Numerics = Literal["exact", "reordered", "lossy"]
FlagValue = str | int | float


@dataclass(frozen=True, slots=True)
class LaunchFlag:
    """A flag with its values, and the block of the script that it stands in.

    A value that begins with "=" is an expression over the strategy, the model and the feature's own values. when : of
    the strategies, those that it is written for; empty: all.
    """

    flag: str
    block: str = ""
    values: tuple[FlagValue, ...] = ()
    when: str = ""

    @property
    def fixed_value(self) -> str | None:
        """The value that stands whatever the strategy; None where there is none or it is an expression."""
        return next((str(value) for value in self.values if not str(value).startswith("=")), None)


@dataclass(frozen=True, slots=True)
class Variant:
    """Launch of a feature by one component.

    by : the part of the launch that says it where it is not the feature's own flags: schedule, placement, dispatcher,
        sequence, memory, environment. flags : all of them have to be registered. keys : of a configuration file, by
        dotted path: the first is written, all are read. unless : components that the release must not have, or flags
        that it must not register, with a value after a blank where only that is meant. needs : features that this
        component asks for beside it. gives_way_to : features that this component refuses beside it.
        models : kinds of model that it has it for, as `Feature.model` names them; empty: all.
        when : strategies that the component can launch it with.
        always : the component has it on, whatever is asked for. whole_model : it refuses it beside adapters.
    reason : why there is neither flag nor key. marked : no flag says that it is on, so the file's comment does.
    """

    component: str
    by: str = ""
    flags: tuple[LaunchFlag, ...] = ()
    keys: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    gives_way_to: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    when: str = ""
    reason: Said = ""
    marked: bool = False
    always: bool = False
    whole_model: bool = False

    def fits(self, stack: Release) -> bool:
        """Whether a release has the component and registers every flag with the values written, and the key."""
        if not stack.has(self.component) or any(_holds(stack, each) for each in self.unless):
            return False
        keys = self.keys[:1]
        return all(map(stack.registers, keys)) and all(stack.registers(f.flag, f.fixed_value) for f in self.flags)


def _holds(stack: Release, name: str) -> bool:
    """Whether a release has a component, or registers a flag with the value behind it."""
    if not name.startswith("--"):
        return stack.has(name)
    flag, _, value = name.partition(" ")
    return stack.registers(flag, value or None)


@dataclass(frozen=True, slots=True)
class AskedFor:
    """Requirements of a strategy where the spec switches the feature on, and the rule's name and words."""

    name: str
    require: str
    text: Text
    source: str = "search.features"


@dataclass(frozen=True, slots=True)
class Feature:
    """One switchable mechanism.

    mechanism : what the formulas know it by; its own name unless it is another feature's in other flags.
    vendors : whose chips it runs on; empty: all.
    model : kinds of model that it has a use for (moe, dense, mla, dropless, computing, shortcut), with the reason where
        a model is another.
    deterministic : equal sums in every run.
    needs : features that it rests on everywhere. gives_way_to : features that exclude it where both could be on.
    decided_by_time_against : of these two, both of which `auto` may have, each strategy uses the faster.
    only_asked : why `auto` never chooses it.
    axis : axis of the strategy that says it, whatever is on. in_use : which strategies use it.
    switch : what of a strategy's document switches it: "" its place in `features`, "field" a field of its name, "base"
        nothing, since it is what the others replace, else a part of the document.
    measured : strategies whose time records know. asked_for : the rule where the spec asks for it.
    values : numbers that the prediction and the launch share.
    unreleased : why no public release has it. launch : how components launch it; the first that fits counts.
    """

    name: str
    title: str
    numerics: Numerics
    area: str
    mechanism: str = ""
    vendors: tuple[str, ...] = ()
    model: dict[str, Said] = field(default_factory=dict)
    deterministic: bool = True
    needs: tuple[str, ...] = ()
    gives_way_to: tuple[str, ...] = ()
    decided_by_time_against: str = ""
    only_asked: Said = ""
    axis: str = ""
    in_use: str = "True"
    switch: str = ""
    measured: str = ""
    asked_for: AskedFor | None = None
    values: dict[str, int | float] = field(default_factory=dict)
    unreleased: Said = ""
    launch: tuple[Variant, ...] = ()

    def variant(self, stack: Release) -> Variant | None:
        """Variant of a feature in a release; None where it can't launch it."""
        return next((each for each in self.launch if each.fits(stack)), None)

    def condition(self, stack: Release | None) -> str:
        """Condition on strategies with which the release's components can run it; empty: all."""
        if stack is None:
            return ""
        return next((each.when for each in self.launch if stack.has(each.component)), "")


GROUPS: dict[str, tuple[str, ...]] = {
    "edpb": ("expert_migration", "sample_rearrangement", "virtual_pipeline_balance"),
    "host": ("host_sync_free", "host_reorder", "host_core_binding"),
}


def expand(name: str) -> tuple[str, ...]:
    """The members of a feature group, or the feature itself."""
    return GROUPS.get(name, (name,))


def mechanisms(features: Iterable[str]) -> frozenset[str]:
    """Mechanisms by which the formulas know features; facts of a record's run, such as graph mode, are their own."""
    return frozenset(FEATURES[name].mechanism if name in FEATURES else name for name in features)


def launch_values(features: Iterable[str], mechanism: str) -> Mapping[str, float]:
    """Numbers that the prediction of a mechanism and its launch share, as the feature that is on says them."""
    own = FEATURES[mechanism].values
    on = (FEATURES[name] for name in sorted(features) if name in FEATURES)
    return next(({**own, **each.values} for each in on if each.mechanism == mechanism), own)


@contextmanager
def registered(source: str | Path | Feature) -> Iterator[tuple[Feature, ...]]:
    """Features of a YAML file of this format, or one feature, known as the shipped ones are while the context lasts.

    Raises ValueError where a name is taken, or a record says what no record can.
    """
    if isinstance(source, Feature):
        new: tuple[Feature, ...] = (source,)
    else:
        new = _features(load_shipped_yaml(Path(source).read_text(encoding="utf-8")))
    with known(FEATURES, {each.name: each for each in new}, taken=GROUPS):
        variants_of.cache_clear()
        yield new
    variants_of.cache_clear()


def _features(document: Mapping[str, Any]) -> tuple[Feature, ...]:
    """The records of one area."""
    rows = {name: {"mechanism": name, **row} for name, row in document["features"].items()}
    for name, row in rows.items():
        row |= {
            key: record_text(f"feature.{name}.{key}", row[key]) for key in row.keys() & {"only_asked", "unreleased"}
        }
        row["model"] = {kind: record_text(f"feature.{name}.{kind}", why) for kind, why in row.get("model", {}).items()}
        row["launch"] = variant_rows(name, row)
        if asked := row.get("asked_for"):
            row["asked_for"] = asked | {"text": record_text(f"feature_rule.{asked['name']}", asked["text"])}
    return read_records(Feature, ({"name": name, "area": document["area"], **row} for name, row in rows.items()))


def variant_rows(name: str, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a record's variants: their flags with the block that the variant names, and reasons that are messages."""
    rows = [dict(each) for each in record.get("launch", ())]
    for row in rows:
        block = row.pop("block", "")
        row["flags"] = [_flag(each, block) for each in row.get("flags", ())]
        if "reason" in row:
            row["reason"] = record_text(f"feature.{name}.{row['component']}", row["reason"])
    return rows


def _flag(row: str | Mapping[str, Any], block: str) -> dict[str, Any]:
    given = {"flag": row} if isinstance(row, str) else dict(row)
    return {"block": block, "values": [given.pop("value")] if "value" in given else [], **given}


def _shipped() -> dict[str, Feature]:
    areas = {area["place"]: _features(area) for area in shipped_folder("autodeploy.stack", "features")}
    return {each.name: each for place in sorted(areas) for each in areas[place]}


FEATURES: dict[str, Feature] = _shipped()


@lru_cache(maxsize=64)
def variants_of(release: Release) -> Mapping[str, Variant | None]:
    """Variants of a release's features, by name; None where it can't launch one."""
    return MappingProxyType({name: each.variant(release) for name, each in FEATURES.items()})
