"""Operator shapes and message sizes that no measured efficiency covers: where a prediction rests on a curve alone.

A number of the profile is measured where its kind says so, or where it was fitted through measured points; its
`measured_over` says over which shapes or sizes. A shape outside them, or of a number that nobody measured, is listed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from autodeploy.evaluation.inputs.context import ALL_GATHER
from autodeploy.evaluation.inputs.rank_order import stage_stride
from autodeploy.evaluation.layers.exchanges import EXPERT, Groups
from autodeploy.evaluation.layers.unit_costs import scalar_at, sharding_of
from autodeploy.evaluation.stages.step_parts import ParameterGroups, p2p_bytes
from autodeploy.specs.base import Document
from autodeploy.workload.layers import embedding_table, head_table, layer_kinds, layer_table, mtp_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates
    from autodeploy.workload.operators import Exchange, LayerTable, Operator
    from cost_models.collectives import Group
    from hardware_profiles.profile import Profile
    from hardware_profiles.schema import Quantity

Reason = Literal["not measured", "beyond the measured range"]

_NUMBERS: dict[str, tuple[str, ...]] = {
    "gemm": ("efficiency.gemm_peak_fraction", "efficiency.gemm_k_half", "efficiency.gemm_mn_half"),
    "grouped_gemm": ("efficiency.grouped_gemm",),
    "attention": ("efficiency.attention_forward", "efficiency.attention_backward"),
    "vector": ("efficiency.hbm",),
    "movement": ("efficiency.permute",),
}
_COLLECTIVES = {
    "gather": "all_gather",
    "scatter": "reduce_scatter",
    "reduce": "all_reduce",
    "dispatch": "all_to_all",
    "combine": "all_to_all",
    "ring": "send_receive",
    "heads": "all_to_all",
}


@dataclass(frozen=True, slots=True)
class Use:
    """One operator or exchange as a run uses it: its class, its shape and the numbers that price it."""

    kind: str
    shape: tuple[tuple[str, int], ...]
    numbers: tuple[str, ...]


class UnmeasuredShape(Document):
    """A shape or size without a measured efficiency: the number that stands in, its kind, and in how many runs."""

    profile: str
    kind: str
    shape: dict[str, int]
    number: str
    number_kind: str
    reason: Reason
    runs: int


class UnmeasuredClass(Document):
    """All shapes of one class on one profile: how many are used, how many unmeasured, and how far they reach."""

    profile: str
    kind: str
    number: str
    number_kind: str
    shapes: int
    unmeasured: int
    extent: dict[str, tuple[int, int]]


class UnmeasuredReport(Document):
    """Classes in order of profile and kind; shapes in order of profile, kind and how many runs use them."""

    classes: tuple[UnmeasuredClass, ...] = ()
    shapes: tuple[UnmeasuredShape, ...] = ()


@dataclass(frozen=True)
class ProfileUses:
    """What one run uses, with the profile it was predicted with and that profile's priors."""

    profile: Profile
    prior: Profile
    uses: frozenset[Use]


def uses_of(context: Context, candidate: Candidates) -> frozenset[Use]:
    """Every operator shape, both passes, and every message of one strategy (a batch of one)."""
    shard = sharding_of(candidate, context)
    model = context.model
    tables = [layer_table(model, shard, context.operators, kind) for kind, _ in layer_kinds(model)]
    tables += [embedding_table(model, shard, context.operators), head_table(model, shard, context.operators)]
    if model.num_nextn_predict_layers:
        tables.append(mtp_table(model, shard, context.operators))
    groups, replicas = Groups.of(shard, context.machine), ParameterGroups.of(candidate, context)
    found: set[Use] = set()
    for table in tables:
        for operator in table.operators:
            found.update(_operator_uses(operator))
        gathers = bool(candidate.moe_dispatcher[0] == ALL_GATHER)
        found.update(_exchange_uses(table, groups, context, gathers))
        found.update(_gradient_uses(table, replicas, context))
    found.update(_pipeline_uses(candidate, context))
    return frozenset(found)


def unmeasured(runs: Iterable[ProfileUses]) -> UnmeasuredReport:
    """What of all runs no measurement covers."""
    counts: Counter[tuple[str, Use]] = Counter()
    profiles: dict[str, ProfileUses] = {}
    for run in runs:
        profiles.setdefault(run.profile.name, run)
        counts.update((run.profile.name, use) for use in run.uses)
    shapes, classes = [], []
    by_class: dict[tuple[str, str, str], list[tuple[Use, UnmeasuredShape | None]]] = {}
    for (name, use), number in sorted(
        counts.items(), key=lambda item: (item[0][0], item[0][1].kind, -item[1], item[0][1].shape)
    ):
        missing = _missing(use, profiles[name], number)
        by_class.setdefault((name, use.kind, use.numbers[0]), []).append((use, missing))
        if missing is not None:
            shapes.append(missing)
    for (name, kind, path), members in sorted(by_class.items()):
        classes.append(_class(name, kind, path, profiles[name], members))
    return UnmeasuredReport(classes=tuple(classes), shapes=tuple(shapes))


def measured_range(number: str, profile: Profile, prior: Profile) -> dict[str, tuple[float, float]] | None:
    """Where a number of a profile was measured: by axis, {} where no range is stated; None where it was not.

    A value fitted to whole runs keeps the range of the measured points that its curve was drawn through.
    """
    for quantity in (profile.quantity(number), prior.quantity(number)):
        if quantity.measured_over is not None:
            return dict(quantity.measured_over.items())
        if quantity.kind == "measured":
            return {}
    return None


def _operator_uses(operator: Operator) -> Iterator[Use]:
    numbers = _NUMBERS[operator.kind]
    if operator.kind in {"gemm", "grouped_gemm"}:
        m, n, k = (round(scalar_at(value, 0)) for value in (operator.rows, operator.columns, operator.depth))
        groups = (("groups", round(scalar_at(operator.groups, 0))),) if operator.kind == "grouped_gemm" else ()
        for rows, columns, depth in ((m, n, k), (m, k, n), (k, n, m)):
            if min(rows, columns, depth) > 0:
                yield Use(operator.kind, (*groups, ("m", rows), ("n", columns), ("k", depth)), numbers)
    elif operator.kind == "attention":
        shape = (("head_dim", round(operator.head_dim)), ("seq", round(scalar_at(operator.seq, 0))))
        for number in numbers:
            yield Use(f"attention {number.rpartition('_')[2]}", shape, (number,))
    else:
        for moved in {round(scalar_at(operator.forward_bytes, 0)), round(scalar_at(operator.backward_bytes, 0))} - {0}:
            yield Use(operator.kind, (("bytes", moved),), numbers)


def _exchange_uses(table: LayerTable, groups: Groups, context: Context, gathers: bool) -> Iterator[Use]:
    for exchange in table.exchanges:
        count = scalar_at(exchange.forward_count, 0) + scalar_at(exchange.backward_count, 0)
        group, collective = _group_of(exchange, groups, gathers)
        if count > 0:
            yield from _message(collective, group, scalar_at(exchange.message_bytes, 0), context)


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
    axes = candidate.axes_at(0)
    pp = int(axes["pp"])
    if pp > 1:
        name = context.machine.tier_of(int(stage_stride(candidate, context.world)[0])).name
        size = (("ranks", 2), ("bytes", round(float(p2p_bytes(candidate, context)[0]))))
        yield Use(f"send_receive on {name}", size, (f"{name}.efficiency",))


def _message(collective: str, group: Group, size: float, context: Context) -> Iterator[Use]:
    """A message on each tier that its group crosses, with the ranks that one instance of the tier joins."""
    message = round(size)
    if message <= 0 or scalar_at(group.size, 0) <= 1:
        return
    for number, (tier, fan_out) in enumerate(zip(context.machine.tiers, group.fan_out, strict=True)):
        if scalar_at(fan_out, 0) > 1:
            shape = (("ranks", round(scalar_at(group.members_inside(number), 0))), ("bytes", message))
            yield Use(f"{collective} on {tier.name}", shape, (f"{tier.name}.efficiency",))


def _group_of(exchange: Exchange, groups: Groups, gathers: bool) -> tuple[Group, str]:
    """The group an exchange runs in and the collective it is there."""
    collective = _COLLECTIVES[exchange.kind]
    if exchange.kind in {"dispatch", "combine"}:
        return groups.ep, ("all_gather" if exchange.kind == "dispatch" else "reduce_scatter") if gathers else collective
    if exchange.kind == "ring":
        return groups.ring, collective
    if exchange.kind == "heads":
        return groups.ulysses, collective
    return (groups.etp if exchange.name in EXPERT else groups.tp), collective


def _missing(use: Use, run: ProfileUses, runs: int) -> UnmeasuredShape | None:
    """What is not measured of a use; None where all its numbers are."""
    for number in use.numbers:
        covered = measured_range(number, run.profile, run.prior)
        reason: Reason = "not measured"
        if covered is not None:
            shape = dict(use.shape)
            if all(low <= shape[axis] <= high for axis, (low, high) in covered.items() if axis in shape):
                continue
            reason = "beyond the measured range"
        quantity: Quantity = run.profile.quantity(number)
        return UnmeasuredShape(
            profile=run.profile.name,
            kind=use.kind,
            shape=dict(use.shape),
            number=number,
            number_kind=quantity.kind,
            reason=reason,
            runs=runs,
        )
    return None


def _class(
    profile: str, kind: str, number: str, run: ProfileUses, members: list[tuple[Use, UnmeasuredShape | None]]
) -> UnmeasuredClass:
    lacking = [missing.shape for _, missing in members if missing is not None]
    axes = list(dict.fromkeys(axis for shape in lacking for axis in shape))
    values = {axis: [shape[axis] for shape in lacking if axis in shape] for axis in axes}
    return UnmeasuredClass(
        profile=profile,
        kind=kind,
        number=number,
        number_kind=run.profile.quantity(number).kind,
        shapes=len(members),
        unmeasured=len(lacking),
        extent={axis: (min(reached), max(reached)) for axis, reached in values.items()},
    )


def extent_words(extent: Mapping[str, tuple[int, int]]) -> str:
    """`m 512-8192, n 1024`."""
    parts = [f"{axis} {low:,}" if low == high else f"{axis} {low:,}-{high:,}" for axis, (low, high) in extent.items()]
    return ", ".join(parts)
