"""From a solved candidate to the plan that users read."""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.evidence import highest_mfu
from autodeploy.costs.inputs.expert_balance import (
    migrated_balance,
    peak_over_layers,
    placed_balance,
    prediction_error,
    routed_balance,
)
from autodeploy.costs.layers.unit_costs import scalar_at
from autodeploy.costs.prediction_spread import nearest_log_error
from autodeploy.costs.stages.build_problem import with_choices
from autodeploy.costs.stages.step_classes import expert_layers
from autodeploy.costs.steps.estimate import Estimate, Layout, applied_array, estimate_layout
from autodeploy.costs.workload.flops import CONVENTION
from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.messages import Message
from autodeploy.search.branch_and_bound.candidate import by_context, priced_together
from autodeploy.search.ranking.explanation import features_in_use, headroom
from autodeploy.search.ranking.measured_speed import rescaled
from autodeploy.search.ranking.operator_report import lane_report
from autodeploy.search.ranking.uncertainty import interval, memory_spread_of, p_fits, run_of, slopes_of
from autodeploy.search.ranking.unproven import evidence_for
from autodeploy.space.candidates import CP_ALGOS, Candidates, concatenate
from autodeploy.specs.planset import (
    Breakdown,
    CountOn,
    ExpertImbalance,
    Hidden,
    HostLine,
    MemoryItem,
    Operators,
    Plan,
    Stage,
    StageMemory,
)
from autodeploy.specs.spec import Spec, canonical_json
from autodeploy.specs.strategy import ChoiceKey, Recompute, Strategy
from cost_models.hbm import GIB
from cost_models.swap import exposed_swap_s
from hardware_profiles.quantities import weakest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.costs.stages.step_classes import Priced, StepClass, StepClasses
    from autodeploy.search.branch_and_bound.candidate import CandidateSolver, Solved
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Rescaled
    from cost_models.arrays import Floats, Ints
    from hardware_profiles.schema import Kind


# The step time to count on where measured runs contradict the predicted one.
def count_on(plan: Plan, candidate: Candidates, context: Context) -> CountOn | None:
    """Step time if the nearest record's error holds, or if no run of the class exceeds its highest MFU.

    The slower one of those outside the plan's interval; None where measured runs agree with it.
    """
    told: list[CountOn] = []
    error, mfu = nearest_log_error(context.family, run_of(candidate, context)), plan.best_measured_mfu
    if error is not None:
        why = Message("ranking.nearest_error_holds", record=plan.uncertainty.nearest_record or "")
        told.append(CountOn(step_time_s=plan.step_time_s * math.exp(-error), why=why))
    if mfu is not None and plan.mfu > mfu.highest:
        why = Message("ranking.best_mfu_limits", mfu=100.0 * mfu.highest, record=mfu.record)
        told.append(CountOn(step_time_s=plan.step_time_s * plan.mfu / mfu.highest, why=why))
    given = plan.uncertainty
    outside = [each for each in told if not given.low_s <= each.step_time_s <= given.high_s]
    return max(outside, key=lambda each: each.step_time_s, default=None)


# What a plan takes for granted about uneven work, in one sentence each.
def assumptions_of(candidate: Candidates, context: Context) -> tuple[str, ...]:
    """Sources of the loads and the effect of levelling them; nothing where two factors say it all."""
    notes: list[str] = []
    if context.model.is_moe and int(candidate.ep[0]) > 1:
        notes += _expert_notes(candidate, context)
    if context.packs is not None:
        without = replace(context, features=context.features - {"sample_rearrangement"})
        plain, used = (float(c.exchange_features(candidate).attention_imbalance[0]) for c in (without, context))
        if "sample_rearrangement" in context.mechanisms:
            key = "ranking.attention_after_rearrangement"
            notes.append(Message(key, factor=plain, after=used))
        else:
            notes.append(Message("ranking.attention_on_longest", factor=plain))
    return tuple(notes)


def expert_imbalance(candidate: Candidates, context: Context) -> ExpertImbalance | None:
    """The factors that a plan's time and memory are predicted with; None without experts."""
    if not context.model.is_moe:
        return None
    groups, loads = context.expert_ranks(candidate), context.loads
    balance = placed_balance(context.loads, groups)
    share = float(peak_over_layers(context.loads, groups, expert_layers(context, candidate))[0])
    peak = float(balance.peak[0])
    return ExpertImbalance(
        ep=int(candidate.ep[0]),
        time_factor=float(balance.compute[0]),
        memory_factor=peak,
        memory_factor_of_stage=1.0 + share * (peak - 1.0),
        router=loads.router,
        forced=loads.router == "forced",
        from_file=loads.series is not None,
    )


def _expert_notes(candidate: Candidates, context: Context) -> list[str]:
    ep, groups = candidate.ep, context.expert_ranks(candidate)
    placed = float(context.exchange_features(candidate).balance.compute[0])
    levels = bool(context.levels_experts(candidate)[0])
    notes: list[str] = []
    if context.loads.series is not None:
        notes.append(Message("ranking.loads_from_file", factor=placed, ep=int(ep[0])))
    if context.loads.capacity is not None:
        notes.append(Message("ranking.dropped_tokens", limit=context.loads.capacity, factor=placed))
    if levels and "mutual_routing" in context.mechanisms:
        copied = routed_balance(context.loads, groups, np.ones(1, dtype=np.bool_))
        notes.append(
            Message(
                "ranking.hot_expert_copies",
                count=int(copied.hot_experts[0]),
                share=100.0 * (1.0 - float(copied.mean_exchange[0])),
            )
        )
    elif levels and "expert_migration" in context.mechanisms:
        moved = migrated_balance(context.loads, groups)
        notes.append(
            Message(
                "ranking.expert_migration",
                steps=context.loads.levelling.interval_steps,
                before=placed,
                after=float(moved.compute[0]),
                error=100.0 * prediction_error(context.loads, groups),
            )
        )
    return notes


# The menu of memory choices.
def memory_menu(classes: StepClasses, context: Context, index: int, layout: Layout) -> tuple[MemoryItem, ...]:
    """All choices of every layer class, those that free most bytes a second first, and how many layers use them.

    Of a swap what its transfers take from device memory counts, and what the passes of the same layer do not hide.
    """
    items = []
    for number, step in enumerate(classes.layers):
        for name, cost in step.cost.choices.items():
            saved = scalar_at(cost.saved_bytes, index)
            if saved <= 0.0:
                continue
            added = scalar_at(cost.recompute_s, index) + _exposed_s(
                step, scalar_at(cost.swap_bytes, index), context, index
            )
            item = MemoryItem(
                layers=step.name,
                choice=name,
                kind=CHOICES[name].kind,
                saved_gib=saved / GIB,
                added_ms=1e3 * added,
                gib_per_ms=saved / GIB / (1e3 * added) if added > 0.0 else None,
                used_layers=_used(layout, name, step.name, number),
            )
            items.append(((step.name, added / saved, name), item))
    return tuple(item for _, item in sorted(items, key=itemgetter(0)))


def _exposed_s(step: StepClass, swap_bytes: float, context: Context, index: int) -> float:
    """Exposed seconds of swapping this alone on a layer: out beside its forward, in beside its backward pass."""
    link = context.machine.host.link_bytes_per_s
    windows = (scalar_at(step.cost.forward.total_s, index), scalar_at(step.cost.backward.total_s, index))
    return sum(float(exposed_swap_s(swap_bytes, link, window)) for window in windows) if swap_bytes else 0.0


def _used(layout: Layout, choice: str, layers: str, number: int) -> int:
    """Layers of a class that use a choice: named for the class, or counted over all classes, first layers first."""
    own = layout.applied.get(ChoiceKey(choice, layers))
    if own is not None:
        return int(np.sum(own))
    counts = layout.applied.get(ChoiceKey(choice))
    if counts is None:
        return 0
    layers_of_stage = layout.layers.sum(axis=1)  # [pp, class]
    before = layers_of_stage[:, :number].sum(axis=1)
    return int(np.sum(np.clip(np.asarray(counts) - before, 0, layers_of_stage[:, number])))


@dataclass(frozen=True, slots=True)
class Identity:
    """Parts of a plan's id, and the factor of a measured run of the same work on its times."""

    spec_hash: str
    profile_hash: str
    engine_version: str
    measured: Rescaled | None = None

    @property
    def ratio(self) -> float:
        """Measured over predicted step time; 1 where nothing was measured."""
        return 1.0 if self.measured is None else self.measured.ratio


def plan_id(identity: Identity, strategy: Strategy) -> str:
    """p_ and eight base32 characters of a hash of the search and the strategy."""
    text = canonical_json(
        [identity.spec_hash, identity.profile_hash, identity.engine_version, strategy.model_dump(mode="json")]
    )
    return "p_" + base64.b32encode(hashlib.sha256(text.encode()).digest())[:8].decode().lower()


def layout_of_solution(problem: InnerProblem, layout: Ints, applied: Ints, read: InnerProblem) -> Layout:
    """The solver's counts as a layout; counts are named by class only where filling in order would not give them.

    read : the problem as an estimate of this layout builds it; it may know options that the solver did without.
    """
    plain: dict[ChoiceKey, Ints] = {}
    for number, option in enumerate(problem.options):
        if applied[:, number].any():
            key = ChoiceKey(option.name)
            plain[key] = plain.get(key, np.zeros(problem.pp, dtype=np.int64)) + applied[:, number]
    guess = Layout(layout, plain)
    if _counts(read, applied_array(read, guess)[0]) == _counts(problem, applied):
        return guess
    exact = {
        ChoiceKey(option.name, problem.classes[option.layer_class].name): applied[:, number]
        for number, option in enumerate(problem.options)
        if applied[:, number].any()
    }
    return Layout(layout, exact)


def _counts(problem: InnerProblem, applied: Ints) -> dict[tuple[str, int], tuple[int, ...]]:
    """Layers of each stage that use an option, for the options in use."""
    return {
        (option.name, option.layer_class): tuple(int(count) for count in applied[:, number])
        for number, option in enumerate(problem.options)
        if applied[:, number].any()
    }


def strategy_of(candidate: Candidates, context: Context, layout: Layout) -> Strategy:
    """The strategy document of a candidate under a layout."""
    axes = candidate.axes_at(0)
    pp, vpp, cp, ep = (int(axes[k]) for k in ("pp", "vpp", "cp", "ep"))
    chunks = layout.layers.sum(axis=-1)
    recomputed, swapped = _memory_documents(layout, pp)
    algo = CP_ALGOS[int(candidate.cp_algo[0])]
    features = features_in_use(candidate, context)
    if recomputed.granularity != "none":  # what is recomputed may run in waits
        features |= {"selective_recompute"} & context.features
    return Strategy(
        tp=int(axes["tp"]),
        pp=pp,
        vpp=vpp,
        dp=int(axes["dp"]),
        cp=cp,
        cp_algo=algo if cp > 1 else None,  # type: ignore[arg-type]
        ulysses_degree=int(axes["ulysses"]) if cp > 1 and algo == "hybrid" else None,
        ep=ep,
        etp=int(axes["etp"]) if context.model.is_moe else None,
        micro_batch_size=int(axes["micro_batch_size"]),
        sequence_parallel=bool(axes["sequence_parallel"]),
        distributed_optimizer=context.distributed_optimizer,
        fsdp=context.fsdp,
        dp_replicate=int(axes["dp_replicate"]),
        schedule=str(axes["schedule"]),
        layers_per_stage=tuple(tuple(int(x) for x in row) for row in chunks)
        if vpp > 1
        else tuple(int(x) for x in chunks[:, 0]),
        moe_dispatcher=str(axes["moe_dispatcher"]) if context.model.is_moe else None,  # type: ignore[arg-type]
        recompute=recomputed,
        swap=_names(swapped),  # type: ignore[arg-type]
        swap_per_stage=swapped or None,
        swap_optimizer=bool(axes["swap_optimizer"]),
        reuse_fp32_param=bool(axes["reuse_fp32_param"]),
        features=tuple(sorted(features)),
    )


def _memory_documents(layout: Layout, pp: int) -> tuple[Recompute, tuple[dict[str, int], ...]]:
    """Recompute and swap as the strategy states them, stage by stage."""
    recompute: list[dict[str, int]] = [{} for _ in range(pp)]
    swap: list[dict[str, int]] = [{} for _ in range(pp)]
    for key, counts in layout.applied.items():
        for stage in np.flatnonzero(counts).tolist():
            if swapped_name := CHOICES[key.name].record.swap:
                swap[stage][str(key._replace(name=swapped_name))] = int(counts[stage])
            else:
                recompute[stage][str(key)] = int(counts[stage])
    names = _names(recompute)
    swapped = tuple(swap) if any(swap) else ()
    if not names:
        return Recompute(granularity="none"), swapped
    if names == ("full",):
        return Recompute(granularity="full", per_stage=tuple(recompute)), swapped
    modules = tuple(name for name in names if name != "full")
    chosen = Recompute(granularity="selective", modules=modules, per_stage=tuple(recompute))  # type: ignore[arg-type]
    return chosen, swapped


def _names(stages: Sequence[Mapping[str, int]]) -> tuple[str, ...]:
    """Choices that any stage uses, without the class they are for."""
    return tuple(sorted({ChoiceKey.of(key).name for stage in stages for key in stage}))


def plans_of_solved(solved: Sequence[Solved], spec: Spec, identity: Identity) -> list[Plan]:
    """The plans of solved candidates; how uncertain they are is computed for all of one context together."""
    laid_out = _laid_out(solved)
    layouts = [layout for _, layout in laid_out]
    slopes: dict[int, Floats] = {}
    for context, rows in by_context(solved):
        together = concatenate([solved[row].candidate for row in rows])
        slopes |= dict(zip(rows, slopes_of(together, context, [layouts[row] for row in rows]), strict=True))
    return [plan_of(*of, spec, identity, slopes[row]) for row, of in enumerate(laid_out)]


def layouts_of_solved(solved: Sequence[Solved], solver: CandidateSolver | None = None) -> list[Layout]:
    """Placements of candidates' plans, and their recomputation and swaps; `solver` : has priced the candidates."""
    if solver is None:
        return [layout for _, layout in _laid_out(solved)]
    return [_layout_of(each, solver.plans(each.index).priced) for each in solved]


def strategy_of_solved(solved: Solved, solver: CandidateSolver | None = None) -> Strategy:
    """The strategy of a candidate's plan; `solver` as of `layouts_of_solved`."""
    return strategy_of(solved.candidate, solved.context, *layouts_of_solved([solved], solver))


def step_s_of_solved(solved: Solved) -> float:
    """Step time of a candidate's plan as its document says it [s]."""
    ((priced, layout),) = _laid_out([solved])
    return estimate_layout(priced, layout).step_time_s


def _laid_out(solved: Sequence[Solved]) -> list[tuple[Priced, Layout]]:
    return [(priced, _layout_of(each, priced)) for each, priced in zip(solved, priced_together(solved), strict=True)]


def _layout_of(solved: Solved, priced: Priced) -> Layout:
    problem, applied = solved.problem, solved.plan.applied
    used = frozenset(option.name for number, option in enumerate(problem.options) if applied[:, number].any())
    read = with_choices(problem, priced, used)
    return layout_of_solution(problem, solved.plan.layout, applied, read)


def plan_of(priced: Priced, layout: Layout, spec: Spec, identity: Identity, slopes: Floats) -> Plan:
    """The plan of a candidate under a layout, with everything predicted about it."""
    estimate, candidate, context = estimate_layout(priced, layout), priced.candidate, priced.context
    strategy = strategy_of(candidate, context, layout)
    of = estimate, strategy, candidate, priced.classes, context, layout, spec, identity, slopes
    return plan_of_estimate(*of, index=priced.index)


def plan_of_estimate(
    estimate: Estimate,
    strategy: Strategy,
    candidate: Candidates,
    classes: StepClasses,
    context: Context,
    layout: Layout,
    spec: Spec,
    identity: Identity,
    slopes: Floats,
    index: int = 0,
) -> Plan:
    """Everything a user reads about one strategy.

    candidate : it alone. classes : of a batch, whose `index` it is.
    slopes : see `ranking.uncertainty.slopes_of`.
    """
    step = estimate.step_time_s
    tokens = context.global_batch * context.sample_tokens / step
    ranks = context.num_npus * context.machine.devices_per_npu
    per_die = "die" if context.machine.devices_per_npu > 1 else "card"
    total_tokens = spec.training.tokens
    days = total_tokens / tokens / 86_400.0 if total_tokens else None
    peak_bytes = float(np.max(estimate.card_bytes))
    spread = memory_spread_of(candidate, context)
    breakdown = Breakdown(**estimate.breakdown)
    measured = highest_mfu(context.family, moe=context.model.is_moe, npus=context.num_npus, precision=context.precision)
    share = context.mfu(tokens / ranks)
    plan = Plan(
        rank=0,
        plan_id=plan_id(identity, strategy),
        strategy=strategy,
        step_time_s=step,
        tokens_per_s=tokens,
        tokens_per_s_per_npu=tokens / context.num_npus,
        mfu=share,
        mfu_convention=f"{CONVENTION}, {context.machine.peak_flops / 1e12:.1f} TF/{per_die}",
        best_measured_mfu=measured,
        peak_memory_gib=peak_bytes / GIB,
        allocator_peak_gib=float(np.max(estimate.allocator_bytes)) / GIB,
        memory_limit_gib=context.limit_bytes / GIB,
        memory_interval=spread.interval(peak_bytes / GIB),
        fits=fits(estimate, context),
        p_fits=p_fits(highest_bytes(estimate), context.limit_bytes, spread),
        evidence=evidence_for(candidate, context),
        oom_imbalance=estimate.oom_imbalance,
        experts=expert_imbalance(candidate, context),
        num_npus_used=context.num_npus,
        micro_batches=int(candidate.micro_batches[0]),
        days=days,
        npu_hours=days * 24.0 * context.num_npus if days is not None else None,
        breakdown=breakdown,
        headroom=headroom(step, share, breakdown),
        hidden=Hidden(**estimate.hidden),
        **_lanes(candidate, context, estimate.breakdown["host_bound_s"] / step),
        memory_menu=memory_menu(classes, context, index, layout),
        stages=_stages(estimate, layout),
        uncertainty=interval(step, candidate, context, slopes),
        assumptions=assumptions_of(candidate, context),
        provenance=_provenance(context),
    )
    plan = plan.model_copy(update={"count_on": count_on(plan, candidate, context)})
    return rescaled(plan, identity.measured)


def _lanes(candidate: Candidates, context: Context, free_share: float) -> dict[str, Any]:
    """Fields of a plan on its operators and on the host that issues them. free_share : of the step."""
    lanes = lane_report(candidate, context, 0)
    host = HostLine(
        operators_per_layer=lanes.launches,
        issue_ms_per_layer=1e3 * lanes.issue_s,
        synchronisations=lanes.synchronisations,
        event_ms=1e3 * lanes.event_s,
        free_share=free_share,
    )
    return {"operators": Operators(**lanes.shares, sorting_hidden_share=lanes.sorting_hidden), "host": host}


def _provenance(context: Context) -> Kind:
    """The weakest ground among the numbers of the machine."""
    if context.profile is None:
        return "assumed"
    return weakest(quantity.kind for quantity in context.profile.quantities.values())


def fits(estimate: Estimate, context: Context) -> bool:
    """Whether every stage stays within the memory limit, in a step and before the first."""
    return highest_bytes(estimate) <= context.limit_bytes * (1.0 + 1e-9)


def highest_bytes(estimate: Estimate) -> float:
    """Most bytes that any card holds, in a step or before the first."""
    return float(max(np.max(estimate.card_bytes), np.max(estimate.start_card_bytes)))


def _stages(estimate: Estimate, layout: Layout) -> tuple[Stage, ...]:
    pp, _vpp = layout.layers.shape[:2]
    stages = []
    for stage in range(pp):
        kinds = {name: float(values[stage]) / GIB for name, values in estimate.memory.items()}
        stages.append(
            Stage(
                layers=tuple(int(x) for x in layout.layers[stage].sum(axis=-1)),
                holds=estimate.holds[stage],
                forward_s=float(estimate.forward_s[stage].sum()),
                backward_s=float(estimate.backward_s[stage].sum()),
                in_flight=float(estimate.in_flight[stage]),
                memory_gib=StageMemory(**kinds),
                total_gib=float(estimate.card_bytes[stage]) / GIB,
                start_gib=float(estimate.start_card_bytes[stage]) / GIB,
            )
        )
    return tuple(stages)
