"""Operator shapes and message sizes that no measured efficiency covers: where a prediction rests on a curve alone.

A number of the profile is measured where its kind says so, or where it was fitted through measured points; its
`measured_over` says over which shapes or sizes. A shape outside them, or of a number that nobody measured, is listed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from autodeploy.costs.inputs.context import ALL_GATHER
from autodeploy.costs.inputs.machine import stage_stride
from autodeploy.costs.layers.exchanges import COLLECTIVES, GATHERING, Groups
from autodeploy.costs.layers.unit_costs import scalar_at, sharding_of
from autodeploy.costs.stages.step_parts import ParameterGroups, p2p_bytes
from autodeploy.costs.workload.layers import tables_of
from autodeploy.costs.workload.operators import group_of
from autodeploy.specs.base import Document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.workload.operators import LayerTable, Operator
    from autodeploy.space.candidates import Candidates
    from cost_models.collectives import Group
    from hardware_profiles.profile import Profile

Reason = Literal["not measured", "beyond the measured range"]

_NUMBERS = {
    "gemm": "efficiency.gemm_peak_fraction",  # the curve's other numbers are measured with it
    "grouped_gemm": "efficiency.grouped_gemm",
    "vector": "efficiency.hbm",
    "movement": "efficiency.permute",
}


@dataclass(frozen=True, slots=True)
class Use:
    """One operator or exchange as a run uses it: its class, its shape and the number that prices it."""

    kind: str
    shape: tuple[tuple[str, int], ...]
    number: str


class _OfNumber(Document):
    """Prices that rest on a number of a profile."""

    profile: str
    kind: str
    number: str
    number_kind: str


class UnmeasuredShape(_OfNumber):
    """A shape or size without a measured efficiency: the number that stands in, its kind, and in how many runs."""

    shape: dict[str, int]
    reason: Reason
    runs: int


class UnmeasuredClass(_OfNumber):
    """All shapes of one class on one profile: how many are used, how many unmeasured, and how far these reach."""

    shapes: int
    unmeasured: int
    extent: dict[str, tuple[int, int]]


class UnmeasuredReport(Document):
    """Classes in order of profile and kind; shapes in order of profile, kind and how many runs use them."""

    classes: tuple[UnmeasuredClass, ...] = ()
    shapes: tuple[UnmeasuredShape, ...] = ()


def uses_of(context: Context, candidate: Candidates) -> frozenset[Use]:
    """Every operator shape, both passes, and every message of one strategy (a batch of one)."""
    shard = sharding_of(candidate, context)
    groups, replicas = Groups.of(shard, context.machine), ParameterGroups.of(candidate, context)
    collectives = GATHERING if candidate.moe_dispatcher[0] == ALL_GATHER else COLLECTIVES
    uses: set[Use] = set()
    for table, _ in tables_of(context.model, shard, context.operators):
        for operator in table.operators:
            uses.update(_operator_uses(operator))
        for exchange in table.exchanges:
            collective, group = collectives[exchange.kind], getattr(groups, group_of(exchange))
            for of, count in exchange.sent:
                if scalar_at(count, 0) > 0:
                    uses.update(_message(collective, group, scalar_at(exchange.sizes[of], 0), context))
        uses.update(_gradient_uses(table, replicas, context))
    uses.update(_pipeline_uses(candidate, context))
    return frozenset(uses)


def unmeasured(runs: Iterable[tuple[Profile, Profile, frozenset[Use]]]) -> UnmeasuredReport:
    """Parts of all runs that no measurement covers.

    runs : the profile that each was predicted with, that profile's priors, and what the run uses.
    """
    counts: Counter[tuple[str, Use]] = Counter()
    profiles: dict[str, tuple[Profile, Profile]] = {}
    for profile, prior, uses in runs:
        profiles.setdefault(profile.name, (profile, prior))
        counts.update((profile.name, use) for use in uses)
    alike: dict[tuple[str, str, str], dict[Use, int]] = {}
    for (name, use), number in sorted(counts.items(), key=lambda item: (-item[1], item[0][1].shape)):
        alike.setdefault((name, use.kind, use.number), {})[use] = number
    classes, shapes = [], []
    for (name, kind, path), used in sorted(alike.items()):
        priced = {"profile": name, "kind": kind, "number": path, "number_kind": profiles[name][0].quantity(path).kind}
        covered = measured_range(path, *profiles[name])
        reason: Reason = "not measured" if covered is None else "beyond the measured range"
        lacking = {use: number for use, number in used.items() if not _covers(covered, use)}
        ends = [(min(sizes), max(sizes)) for sizes in zip(*(use.shape for use in lacking), strict=True)]
        extent = {axis: (low, high) for (axis, low), (_, high) in ends}
        classes.append(UnmeasuredClass(shapes=len(used), unmeasured=len(lacking), extent=extent, **priced))
        shapes += [UnmeasuredShape(shape=dict(u.shape), reason=reason, runs=n, **priced) for u, n in lacking.items()]
    return UnmeasuredReport(classes=tuple(classes), shapes=tuple(shapes))


def measured_range(number: str, profile: Profile, prior: Profile) -> dict[str, tuple[float, float]] | None:
    """Range in which a number of a profile was measured: by axis, {} where no range is stated; None where it was not.

    A value fitted to whole runs keeps the range of the measured points that its curve was drawn through.
    """
    for quantity in (profile.quantity(number), prior.quantity(number)):
        if quantity.measured_over is not None:
            return dict(quantity.measured_over.items())
        if quantity.kind == "measured":
            return {}
    return None


def _operator_uses(operator: Operator) -> Iterator[Use]:
    if operator.kind == "attention":
        shape = (("head_dim", round(operator.head_dim)), ("seq", round(scalar_at(operator.seq, 0))))
        for part in ("forward", "backward"):
            yield Use(f"attention {part}", shape, f"efficiency.attention_{part}")
        return
    number = _NUMBERS[operator.kind]
    if operator.kind in {"gemm", "grouped_gemm"}:
        m, n, k = (round(scalar_at(value, 0)) for value in (operator.rows, operator.columns, operator.depth))
        groups = (("groups", round(scalar_at(operator.groups, 0))),) if operator.kind == "grouped_gemm" else ()
        for rows, columns, depth in ((m, n, k), (m, k, n), (k, n, m)):
            if min(rows, columns, depth) > 0:
                yield Use(operator.kind, (*groups, ("m", rows), ("n", columns), ("k", depth)), number)
    else:
        for moved in {round(scalar_at(operator.forward_bytes, 0)), round(scalar_at(operator.backward_bytes, 0))} - {0}:
            yield Use(operator.kind, (("bytes", moved),), number)


def _gradient_uses(table: LayerTable, groups: ParameterGroups, context: Context) -> Iterator[Use]:
    """Gradients and updated weights of one layer: frameworks' buckets hold about one."""
    for params, group in ((table.dense_params, groups.dense), (table.expert_params, groups.expert)):
        gradients = scalar_at(params, 0) * context.gradient_bytes
        if context.distributed_optimizer:
            yield from _message("reduce_scatter", group, gradients, context)
            yield from _message("all_gather", group, 2.0 * scalar_at(params, 0), context)
        else:
            yield from _message("all_reduce", group, gradients, context)


def _pipeline_uses(candidate: Candidates, context: Context) -> Iterator[Use]:
    """Activations between stages."""
    if candidate.pp[0] > 1:
        name = context.machine.tier_of(int(stage_stride(candidate, context.world)[0])).name
        size = (("ranks", 2), ("bytes", round(float(p2p_bytes(candidate, context)[0]))))
        yield Use(f"send_receive on {name}", size, f"{name}.efficiency")


def _message(collective: str, group: Group, size: float, context: Context) -> Iterator[Use]:
    """A message on each tier that its group crosses, with the ranks that one instance of the tier joins."""
    message = round(size)
    if message <= 0 or scalar_at(group.size, 0) <= 1:
        return
    for number, (tier, fan_out) in enumerate(zip(context.machine.tiers, group.fan_out, strict=True)):
        if scalar_at(fan_out, 0) > 1:
            shape = (("ranks", round(scalar_at(group.members_inside(number), 0))), ("bytes", message))
            yield Use(f"{collective} on {tier.name}", shape, f"{tier.name}.efficiency")


def _covers(measured: Mapping[str, tuple[float, float]] | None, use: Use) -> bool:
    """Whether a use lies where its number was measured."""
    shape = dict(use.shape)
    return measured is not None and all(low <= shape.get(axis, low) <= high for axis, (low, high) in measured.items())
