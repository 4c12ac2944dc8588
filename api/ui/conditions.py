"""What of the work and the cluster a plan's what-if box lets turn, and the spec with some of it changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.specs.spec import parse_spec
from hardware_profiles import ProfileError, load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles import Profile

GRADE = "{device}"
"""Stands in a path for the chip grade that the spec says, which may be one of the things that were turned."""
LINK = "gb_per_s_per_npu"
HBM = "usable_hbm_gib"


@dataclass(frozen=True, slots=True)
class Condition:
    """A value of the spec that can be changed: where it stands and what it is now.

    `least` and `step` are of numbers; `options` are the words of a choice. `tier` is the level of the interconnect
    that a bandwidth is of.
    """

    name: str
    path: tuple[str, ...]
    value: str
    least: str = "1"
    step: str = "1"
    options: tuple[str, ...] = ()
    tier: str = ""


def conditions_of(plan: Plan, spec: Mapping[str, Any]) -> tuple[Condition, ...]:
    """What of the work and the cluster can be turned; nothing of post-training, whose lengths say it all."""
    training, strategy = spec["training"], plan.strategy
    if training.get("rl"):
        return ()
    batch = plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1)
    conditions = [
        Condition("num_npus", ("cluster", "num_npus"), str(plan.num_npus_used)),
        Condition("global_batch_size", ("training", "global_batch_size"), str(batch)),
        Condition("seq_length", ("training", "seq_length"), str(training["seq_length"])),
    ]
    uneven = training.get("routing_imbalance")
    if spec["model"].get("n_routed_experts") and isinstance(uneven, int | float):
        path = ("training", "routing_imbalance")
        conditions.append(Condition("routing_imbalance", path, f"{uneven:g}", step="0.05"))
    conditions += _of_hardware(spec["cluster"])
    risk = spec.get("search", {}).get("risk", "averse")
    conditions.append(Condition("risk", ("search", "risk"), risk, options=("averse", "neutral")))
    return tuple(conditions)


def profile_of_plan(cluster: Mapping[str, Any]) -> Profile | None:
    """The hardware profile with the spec's own numbers; None where it is not there any more."""
    try:
        return load_profile(str(cluster["profile"]), cluster.get("overrides") or None)
    except ProfileError:
        return None


def grade_of(cluster: Mapping[str, Any]) -> str:
    """The chip grade that the spec says, or its profile's default; empty where the profile is gone."""
    profile = profile_of_plan(cluster)
    return str(cluster.get("device") or (profile.default_device if profile else ""))


def _of_hardware(cluster: Mapping[str, Any]) -> list[Condition]:
    """Chip grade, usable memory (GiB) and the bandwidth of each level of the interconnect (GB/s a card, one way)."""
    profile = profile_of_plan(cluster)
    if profile is None:
        return []
    conditions, grade = [], grade_of(cluster)
    if len(profile.devices) > 1:
        conditions.append(Condition("device", ("cluster", "device"), grade, options=tuple(profile.devices)))
    memory = profile.quantities.get(f"devices.{grade}.{HBM}")
    if memory is not None:
        path = ("cluster", "overrides", f"devices.{GRADE}.{HBM}")
        conditions.append(Condition(HBM, path, f"{memory.value:g}", step="any"))
    for name, quantity in profile.quantities.items():
        tier, _, number = name.rpartition(".")
        if number == LINK:
            path = ("cluster", "overrides", name)
            conditions.append(Condition(name, path, f"{quantity.value:g}", least="0", step="any", tier=tier))
    return conditions


def memory_by_grade(cluster: Mapping[str, Any]) -> dict[str, str]:
    """Usable memory of each chip grade as the box writes it, GiB."""
    profile = profile_of_plan(cluster)
    paths = {} if profile is None else {grade: f"devices.{grade}.{HBM}" for grade in profile.devices}
    return {grade: f"{profile.quantities[path].value:g}" for grade, path in paths.items() if profile is not None}


def changed_spec(spec: Spec, conditions: tuple[Condition, ...], given: Mapping[str, Any]) -> Spec:
    """The spec with the conditions that a form changed; another number of cards has no broken nodes.

    Raises
    ------
    SpecError
        with every bad field.
    """
    document = spec.model_dump(mode="json")
    memory = memory_by_grade(document["cluster"])
    for condition in conditions:
        text = str(given.get(condition.name, condition.value)).strip()
        grade = document["cluster"].get("device") or grade_of(document["cluster"])
        own = memory.get(grade) if condition.name == HBM else None  # the box shows that of the grade that was chosen
        if text in ("", condition.value, own):
            continue
        *parents, field = (step.replace(GRADE, grade) for step in condition.path)
        place = document
        for parent in parents:
            place[parent] = {**(place.get(parent) or {})}
            place = place[parent]
        place[field] = value = text if condition.options else _number(text)
        if condition.name == "num_npus":
            place.pop("blocks", None)
        peak = place.get("routing_imbalance_peak")
        if condition.name == "routing_imbalance" and isinstance(peak, float) and isinstance(value, float):
            place["routing_imbalance_peak"] = max(peak, value)
    document.pop("strategy", None)
    return parse_spec(document)


def _number(text: str) -> Any:
    """A whole number, a fraction, or the text, of which the spec says what is wrong."""
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text
