"""The plan with which a run of weeks ends soonest: every way to meet failures that the target has, each searched.

Recovery costs memory, excludes some memory choices and lengthens the step; without it every failure loses the work
since the last checkpoint. Neither is better everywhere, so both are searched, and the days to the last token decide.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from autodeploy.costs.inputs.build_context import healthy_npus, profile_of
from autodeploy.costs.training_run.checkpoints import Launched, checkpoint_change
from autodeploy.costs.training_run.run_estimate import phases_of
from autodeploy.kit.errors import SearchCancelled, SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.search.ranking.explanation import explanation
from autodeploy.search.ranking.search_result import gap_of
from autodeploy.specs.plan_details import SparePlan, SpareRow
from autodeploy.specs.planset import Counts, Optimality, SearchInfo, Timing
from autodeploy.specs.spec import spec_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.kit.deadline import Deadline
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy


OBJECTIVE: Final = "time_to_train"
DAY_S: Final = 86_400.0
COPIES, REBOOT = "high_availability", "worker_reboot"
RECOVERIES: Final = {
    "none": {COPIES: "off", REBOOT: "off"},
    "ttp": {COPIES: "on", REBOOT: "off"},
    "ttp+reboot": {COPIES: "on", REBOOT: "on"},
}
"""How failures are met, by its name in a plan's run: the features that it takes."""
RELAXATION: Final = Message("planner.recovery_bound")


@dataclass(frozen=True)
class _PlannedRecovery:
    """A recovery and what its search found. days : of its recommended plan, infinite where it has none."""

    name: str
    result: PlanSet

    @property
    def days(self) -> float:
        return days_of(self.result.plans[0]) if self.result.plans else math.inf


def days_of(plan: Plan) -> float:
    """Days to the last token, failures included; infinite where the plan can't run a phase."""
    return math.inf if plan.run is None or plan.run.days is None else plan.run.days


def plan_time_to_train(
    spec: Spec,
    plan: Callable[..., PlanSet],
    stop: Deadline,
    *,
    search_id: str,
    created_at: str,
    started: float,
) -> PlanSet:
    """Plans in the order of the days to the last token: those of the best recovery, and the best of every other one.

    plan : searches the spec under one recovery; its plans are named after `of`.

    Raises SpecError where no recovery can be planned.
    """
    planned, refused = [], []
    recoveries = list(_recoveries(spec))
    for place, (name, one) in enumerate(recoveries):
        if stop():
            break
        try:
            planned.append(_PlannedRecovery(name, plan(_in_time(one, stop, len(recoveries) - place), of=spec)))
        except SpecError as error:
            refused.append(error)
    if not planned:
        raise refused[0] if refused else SearchCancelled
    return _merged(spec, planned, search_id=search_id, created_at=created_at, started=started)


def _recoveries(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """The spec under each recovery that it leaves open, by step time."""
    asked = spec.search.features
    for name, features in RECOVERIES.items():
        if any(asked.get(each, "auto") not in ("auto", switch) for each, switch in features.items()):
            continue
        changes = {"objective": "step_time", "features": {**asked, **features}, "spare_nodes": ()}
        yield name, spec.model_copy(update={"search": spec.search.model_copy(update=changes)})


def _in_time(spec: Spec, stop: Deadline, left: int) -> Spec:
    """The spec with its share of the time that is left."""
    search = spec.search.model_copy(update={"time_limit_s": max(1.0, stop.left_s / left)})
    return spec.model_copy(update={"search": search})


def _merged(
    spec: Spec, recoveries: list[_PlannedRecovery], *, search_id: str, created_at: str, started: float
) -> PlanSet:
    ranked = sorted(recoveries, key=lambda recovery: recovery.days)
    first = ranked[0].result
    others = [recovery.result.plans[0] for recovery in ranked[1:] if recovery.result.plans]
    kept = (*first.plans[: max(1, spec.search.top_k - len(others))], *others)[: spec.search.top_k]
    bound = _bound_days(spec, recoveries)
    plans = tuple(_ranked(each, rank, kept, bound) for rank, each in enumerate(kept, start=1))
    gap = plans[0].gap if plans else None
    fastest = first.fastest
    if fastest is not None:
        rank = next((each.rank for each in plans if each.plan_id == fastest.plan_id), None)
        fastest = fastest.model_copy(update={"rank": rank})
    return first.model_copy(
        update={
            "search": SearchInfo(
                id=search_id,
                spec=spec.model_dump(mode="json"),
                spec_hash=spec_hash(spec),
                profile_hash=profile_of(spec.cluster).content_hash,
                engine_version=ENGINE_VERSION,
                created_at=created_at,
            ),
            "status": "feasible" if plans else first.status,
            "reproducible": all(recovery.result.reproducible for recovery in recoveries),
            "optimality": Optimality(
                objective=OBJECTIVE, bound=bound, relaxation=RELAXATION if bound is not None else "", gap=gap
            ),
            "counts": _counts(recoveries),
            "timing": Timing(
                enumerate_s=sum(recovery.result.timing.enumerate_s for recovery in recoveries),
                solve_s=sum(recovery.result.timing.solve_s for recovery in recoveries),
                total_s=time.monotonic() - started,
            ),
            "plans": plans,
            "fastest": fastest,
            "warnings": (*first.warnings, *_notes(ranked)),
        }
    )


def _ranked(plan: Plan, rank: int, kept: tuple[Plan, ...], bound: float | None) -> Plan:
    days = days_of(plan)
    gap = None if math.isinf(days) else gap_of(days, bound)
    other = kept[0] if rank > 1 else (kept[1] if len(kept) > 1 else None)
    return plan.model_copy(update={"rank": rank, "gap": gap, "explanation": explanation(plan, other)})


def _bound_days(spec: Spec, recoveries: list[_PlannedRecovery]) -> float | None:
    """Days that no plan falls below; None where a phase has a step of its own, or a search no bound."""
    bounds = [recovery.result.optimality.bound for recovery in recoveries if recovery.result.plans]
    phases, batch = phases_of(spec), spec.training.global_batch_size
    own = spec.training.seq_length, (batch.value,)
    sizes = {(each.seq_length, tuple(s.global_batch for s in each.stretches)) for each in phases}
    if not bounds or None in bounds or sizes != {own} or batch.tolerance_pct:
        return None
    steps = sum(each.tokens for each in phases) / (own[0] * batch.value)
    return min(each for each in bounds if each is not None) * steps / DAY_S


def _counts(recoveries: list[_PlannedRecovery]) -> Counts:
    """Of all searches together."""
    counts = [recovery.result.counts for recovery in recoveries]
    rejected: dict[str, int] = {}
    for each in counts:
        for rule, number in each.rejected.items():
            rejected[rule] = rejected.get(rule, 0) + number
    return Counts(
        enumerated=sum(each.enumerated for each in counts),
        rejected=dict(sorted(rejected.items())),
        too_big=sum(each.too_big for each in counts),
        pruned=sum(each.pruned for each in counts),
        solved=sum(each.solved for each in counts),
    )


def _notes(ranked: list[_PlannedRecovery]) -> tuple[str, ...]:
    """Notes on the cost of each other recovery."""
    best, *others = ranked
    if math.isinf(best.days):
        return ()
    return tuple(
        Message("planner.recovery_days", other=recovery.name, days=recovery.days, best=best.days, name=best.name)
        for recovery in others
        if math.isfinite(recovery.days)
    )


# The best plans of a spec with some nodes fewer, and what becomes of the checkpoint of the recommended plan there.
SEARCH: Final[dict[str, Any]] = {"effort": "fast", "top_k": 1, "spare_nodes": ()}
LAYOUT: Final = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "schedule")
"""Axes of today's plan that decide what a rank holds, and how it computes it."""


def spare_rows(spec: Spec, today: Plan, plan: Callable[[Spec], PlanSet], stop: Deadline) -> tuple[SpareRow, ...]:
    """One row for each number of nodes in `search.spare_nodes` that leaves cards to plan on.

    today : the recommended plan on all cards. plan : searches a spec of fewer cards; its plans may leave cards idle,
        as a batch seldom divides by what is left.
    """
    profile = profile_of(spec.cluster)
    cards = healthy_npus(profile, spec.cluster)
    rows: list[SpareRow] = []
    fewer: Plan | None = None  # the best on fewer cards still, which more cards can run as well
    for nodes in sorted(set(spec.search.spare_nodes), reverse=True):
        left = cards - nodes * profile.npus_per_node
        if left < 1 or stop():
            continue
        smaller = _with_cards(spec, left)
        best, reason = _planned(smaller, plan)
        if fewer is not None and (best is None or fewer.step_time_s < best.step_time_s):
            best, reason = fewer, None
        fewer = best
        kept = _with_layout(smaller, today.strategy, left, profile.devices_per_npu)
        same, _ = (None, None) if kept is None else _planned(kept, plan)
        rows.append(
            SpareRow(
                nodes=nodes,
                num_npus=left,
                best=None if best is None else _spare(spec, today, best, profile.vendor),
                same_layout=None if same is None else _spare(spec, today, same, profile.vendor),
                reason=reason,
            )
        )
    return tuple(reversed(rows))


def _with_cards(spec: Spec, cards: int) -> Spec:
    """The same work on so many cards at most; a run of weeks is not worked out for them."""
    changes: dict[str, Any] = {"num_npus": cards, "blocks": None, "spare_npus": 0, "use": "at_most"}
    cluster = spec.cluster.model_copy(update=changes)
    search = {**SEARCH, "objective": "tokens_per_s_per_npu" if spec.search.objective == "peak_memory" else "step_time"}
    return spec.model_copy(
        update={
            "cluster": cluster,
            "search": spec.search.model_copy(update=search),
            "training": spec.training.model_copy(update={"tokens": None}),
            "run": None,
            "strategy": None,
        }
    )


def _with_layout(spec: Spec, strategy: Strategy, cards: int, dies_per_card: int) -> Spec | None:
    """Today's degrees and schedule on as many replicas as fit on the cards; None where not even one does.

    The batch is lowered to what these replicas divide, in whole groups of micro batches where stages are interleaved.
    """
    ranks = strategy.tp * strategy.pp * strategy.cp
    experts = strategy.ep * (strategy.etp or 1)
    for dp in range(cards * dies_per_card // ranks, 0, -1):
        if dp * ranks % dies_per_card or dp * strategy.tp * strategy.cp % experts:
            continue
        unit = dp * strategy.micro_batch_size * (strategy.pp if strategy.vpp > 1 else 1)
        batch = spec.training.global_batch_size.value // unit * unit
        if not batch:
            continue
        sizes = spec.training.global_batch_size.model_copy(update={"value": batch, "tolerance_pct": 0.0})
        pinned = {axis: value for axis in LAYOUT if (value := getattr(strategy, axis)) is not None}
        search = spec.search
        fields: dict[str, Any] = {"fix": {**search.fix, **pinned}}
        for name in ("allow", "forbid"):
            kept = {axis: values for axis, values in getattr(search, name).items() if axis not in pinned}
            fields[name] = {axis: values for axis, values in kept.items() if axis != "dp"}
        return spec.model_copy(
            update={
                "cluster": spec.cluster.model_copy(update={"num_npus": dp * ranks // dies_per_card, "use": "exactly"}),
                "training": spec.training.model_copy(update={"global_batch_size": sizes}),
                "search": search.model_copy(update=fields),
            }
        )
    return None


def _planned(spec: Spec, plan: Callable[[Spec], PlanSet]) -> tuple[Plan | None, str | None]:
    """The recommended plan, or why there is none."""
    try:
        result = plan(spec)
    except SpecError as error:
        return None, error.errors[0].message
    return (result.plans[0], None) if result.plans else (None, Message("common.no_plan_fits"))


def _spare(spec: Spec, today: Plan, plan: Plan, vendor: str) -> SparePlan:
    """A plan with fewer nodes; checkpoints are saved and read as the spec's run says."""
    strategy = plan.strategy
    return SparePlan(
        plan_id=plan.plan_id,
        strategy=strategy,
        num_npus=plan.num_npus_used,
        global_batch_size=plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1),
        step_time_s=plan.step_time_s,
        tokens_per_s=plan.tokens_per_s,
        throughput_pct=100.0 * plan.tokens_per_s / today.tokens_per_s,
        peak_memory_gib=plan.peak_memory_gib,
        p_fits=plan.p_fits,
        checkpoint=checkpoint_change(Launched(spec, today, vendor), Launched(spec, plan, vendor)),
    )
