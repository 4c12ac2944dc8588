"""plan(spec) -> PlanSet: the whole way from a spec to ranked plans. Pure: no database, no HTTP."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from autodeploy.calibration.unmeasured import ProfileUses, unmeasured, uses_of
from autodeploy.deadline import Deadline
from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import FieldError, SearchCancelled, SpecError
from autodeploy.evaluation.inputs.build_context import choice_context, profile_of, spec_context
from autodeploy.evaluation.layers.alternatives import closed, resolved
from autodeploy.evaluation.steps.one_strategy import as_candidate, candidate_for, estimated, judged_candidate
from autodeploy.evaluation.steps.strategy_layout import facts_of_placement
from autodeploy.evaluation.steps.timeline import pipeline_timeline
from autodeploy.progress import Progress, SearchReporter
from autodeploy.ranking.advice import Adviser, from_search
from autodeploy.ranking.batch_tolerance import best_batch
from autodeploy.ranking.beside_plans import BesidePlans
from autodeploy.ranking.chosen import weight_of
from autodeploy.ranking.infeasible import HOPELESS_S
from autodeploy.ranking.legality import nearest_changes
from autodeploy.ranking.measured_speed import measured_ratio
from autodeploy.ranking.one_strategy import Predicted, predicted
from autodeploy.ranking.partly_given import Asked, explain_partly_given, is_whole
from autodeploy.ranking.place import place as place_candidate
from autodeploy.ranking.plans import Identity
from autodeploy.ranking.rescaled_plan import rescaled_timeline
from autodeploy.ranking.search_result import finish
from autodeploy.ranking.unrestricted import price_of_target
from autodeploy.ranking.why_not import explain_rejection
from autodeploy.rl_planning.planning import estimate_rl, plan_rl
from autodeploy.rl_planning.update_layouts import update_alone, update_spec
from autodeploy.solver.effort import budget, cores
from autodeploy.solver.outer.best_first import best_first
from autodeploy.solver.outer.least_memory import least_memory
from autodeploy.solver.outer.placements import with_placements
from autodeploy.solver.search_size import search_size as size_of_search
from autodeploy.solver.search_space import Searched, refuse_enormous, search_space
from autodeploy.specs.planset import Unrestricted
from autodeploy.specs.spec import Spec, spec_hash
from autodeploy.specs.what_if import WhyNot
from autodeploy.strategies.feature_choice import FeatureChoice, choose_features
from autodeploy.strategies.launch_rules import LaunchRules
from autodeploy.strategies.memory_rules import launchable
from autodeploy.strategies.rule_sentences import told
from autodeploy.strategies.rules import broken_rules, values_of
from autodeploy.strategies.unmodelled import refuse_unmodelled
from autodeploy.training_run.phases import phases_of
from autodeploy.training_run.run_estimate import Step, planned_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.calibration.unmeasured import UnmeasuredReport
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.ranking.advice import Advice
    from autodeploy.solver.effort import Budget
    from autodeploy.solver.outer.frontier import Frontier
    from autodeploy.solver.search_size import SearchSize
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.strategy import Strategy
    from autodeploy.specs.timeline import PipelineTimeline
    from autodeploy.strategies.candidates import Candidates
    from hardware_profiles.profile import Profile

Found = TypeVar("Found")

__all__ = [
    "LaunchRules",
    "Predicted",
    "Progress",
    "WhyNot",
    "check_space",
    "describe_hashes",
    "estimate",
    "fastest_s",
    "launch_rules",
    "lowered",
    "place",
    "plan",
    "predict",
    "profile_hash",
    "reestimate",
    "search_size",
    "step_time_of",
    "timeline",
    "unmeasured_of",
    "why_not",
]


@dataclass(frozen=True)
class Prepared:
    """A spec resolved: profile, features and the context of the nominal cluster and batch."""

    spec: Spec
    profile: Profile
    choice: FeatureChoice
    context: Context
    identity: Identity


def prepare(spec: Spec) -> Prepared:
    """Resolve a spec.

    Raises
    ------
    SpecError
        if a feature, profile, device, precision or kind of training can't be planned with.
    """
    refuse_unmodelled(spec)
    profile = profile_of(spec.cluster)
    choice = choose_features(spec.search, spec.model, profile)
    context = choice_context(spec, profile, choice)
    return Prepared(spec, profile, choice, context, _identity(spec, profile, context))


def _identity(spec: Spec, profile: Profile, context: Context) -> Identity:
    measured = measured_ratio(spec, profile, context)
    return Identity(spec_hash(spec), profile.content_hash, ENGINE_VERSION, measured)


def check_space(spec: Spec) -> None:
    """Raises where a search of the spec would be refused, without searching.

    Raises
    ------
    SpecError
        as `prepare`, and if there would be too many candidates.
    """
    if spec.training.rl is not None:
        spec = update_spec(spec)
    prepared = prepare(spec)
    refuse_enormous(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    _check_phases(prepared.spec)


def _check_phases(spec: Spec) -> None:
    """The same of every phase that is searched for a layout of its own."""
    if spec.run is None or spec.run.layout_changes != "allowed":
        return
    own = spec.training.seq_length, spec.training.global_batch_size.value
    sizes = [(phase.seq_length, phase.stretches[-1].global_batch) for phase in phases_of(spec)]
    for size in dict.fromkeys(each for each in sizes if each != own):
        at = prepare(_at(spec, *size))
        try:
            refuse_enormous(at.spec, at.profile, at.choice, at.context)
        except SpecError as error:
            place = f"/run/phases/{sizes.index(size)}"
            raise SpecError(errors=tuple(FieldError(place, e.message, e.hint) for e in error.errors)) from error


def search_size(spec: Spec) -> SearchSize:
    """What the time of the spec's search depends on, counted without searching; errors as `prepare`."""
    prepared = prepare(spec if spec.training.rl is None else update_spec(spec))
    return size_of_search(prepared.spec, prepared.profile, prepared.choice, prepared.context)


def describe_hashes(spec: Spec) -> tuple[str, str, str]:
    """(spec hash, profile hash, engine version): equal triples give equal plans."""
    return spec_hash(spec), profile_of(spec.cluster).content_hash, ENGINE_VERSION


def profile_hash(cluster: ClusterSpec) -> str:
    """Hash of the profile that plans of this cluster rest on, its overlay and overrides included."""
    return profile_of(cluster).content_hash


def plan(
    spec: Spec,
    *,
    search_id: str = "",
    created_at: str = "",
    progress: Callable[[Progress], None] | None = None,
    should_cancel: Callable[[], bool] | None = None,
    alone: bool = False,
) -> PlanSet:
    """Search the strategies of a spec and return the best, ranked and explained.

    Parameters
    ----------
    alone : only the ranked plans, for a caller that reads nothing else: half the proof, nothing to compare them with,
        no other batches or cards that would divide better, no reason why nothing fits.

    Raises
    ------
    SpecError
        if the spec asks for something that can't be planned. An infeasible spec is a result.
    """
    started = time.monotonic()
    stop = Deadline(should_cancel, started, spec.search.time_limit_s)
    if spec.training.rl is not None:
        update = partial(plan, should_cancel=stop, alone=True)
        return plan_rl(spec, update, stop, search_id=search_id, created_at=created_at, started=started)
    _check_phases(spec)
    prepared = _ended(lambda: _with_best_batch(prepare(spec)), spec, stop, alone=alone)
    with BesidePlans(prepared.spec, prepared.profile, prepared.context, prepared.identity, stop) as beside:
        if not alone:
            beside.begin()
        choice, context = prepared.choice, prepared.context
        searched = _ended(
            lambda: search_space(prepared.spec, prepared.profile, choice, context, stop), spec, stop, alone=alone
        )
        enumerated_s = time.monotonic() - started
        report = SearchReporter(progress, started, searched, prepared.identity.ratio, stop)
        report.enumerated()
        frontier = stop.search(lambda: _best(spec, searched, report, stop, alone=alone)) or report.so_far()
        price = stop.search(lambda: _price_of_target(prepared, frontier, stop)) or Unrestricted()
        advice = stop.search(lambda: _advice(prepared, searched, frontier, stop, alone=alone))
        result = finish(
            prepared.spec,
            prepared.profile,
            prepared.context,
            searched,
            frontier,
            prepared.identity,
            search_id=search_id,
            created_at=created_at,
            timing=(enumerated_s, time.monotonic() - started - enumerated_s, started),
            deadline=stop,
            unrestricted=price,
            advice=advice,
            beside=None if alone else beside,
        )
    if stop.out_of_time and not result.plans and not alone:
        raise _no_plan_in_time(spec)
    result = _with_runs(prepared, result, stop)
    report.finished(result)
    return result


def _ended(part: Callable[[], Found], spec: Spec, stop: Deadline, *, alone: bool) -> Found:
    """What a part gives without which there are no plans; whoever asks for plans alone is in no such hurry."""
    found = part() if alone else stop.search(part)
    if found is not None:
        return found
    raise _no_plan_in_time(spec) if stop.out_of_time else SearchCancelled


def _no_plan_in_time(spec: Spec) -> SpecError:
    limit = f"time limit: no plan was found in {spec.search.time_limit_s:g} s"
    return SpecError(limit, path="/search/time_limit_s", hint="more seconds, or fewer strategies: fix or allow axes")


def _best(spec: Spec, searched: Searched, report: SearchReporter, stop: Deadline, *, alone: bool) -> Frontier:
    """The best of the candidates and what is proven of the others."""
    kept = from_search(spec.search.top_k)
    search = least_memory if _for_memory(spec) else partial(best_first, beside=cores() > 1, keep=kept)
    frontier = search(
        searched.candidates,
        searched.swept,
        searched.context_of,
        top_k=spec.search.top_k,
        gap=spec.search.gap,
        budget=budget_of(spec, alone=alone),
        costs=searched.costs,
        watch=report.solved,
        should_cancel=stop,
    )
    if spec.search.distinct == "placements":
        frontier.best = with_placements(frontier.best, spec.search.top_k, stop)
    return frontier


def _advice(
    prepared: Prepared, searched: Searched, frontier: Frontier, stop: Deadline, *, alone: bool
) -> Advice | None:
    """The ranking by risk, where the spec wants one and there is something to rank."""
    spec = prepared.spec
    if spec.search.risk == "neutral" or not frontier.best or frontier.cancelled or _for_memory(spec):
        return None
    weight = partial(weight_of, objective=spec.search.objective)
    return Adviser(
        prepared.profile, searched, frontier, spec.search.top_k, budget_of(spec, alone=alone), weight, stop
    ).advise()


def _price_of_target(prepared: Prepared, frontier: Frontier, stop: Deadline) -> Unrestricted:
    """What the launch target's rules cost: a second search, which only those pay who ask for more than the usual."""
    spec = prepared.spec
    if frontier.cancelled or _for_memory(spec) or budget_of(spec).quick <= budget_of(_usual(spec)).quick:
        return Unrestricted()
    found = price_of_target(spec, prepared.profile, prepared.choice, frontier, budget_of(spec), stop)
    best = found.best_step_time_s
    return found if best is None else found.model_copy(update={"best_step_time_s": prepared.identity.ratio * best})


def _for_memory(spec: Spec) -> bool:
    return spec.search.objective == "peak_memory"


def _with_runs(prepared: Prepared, result: PlanSet, stop: Deadline) -> PlanSet:
    """The plans with what the run of weeks takes under each, as far as there is time for it."""
    searched: dict[tuple[int, int], tuple[Plan, ...]] = {}

    def layouts_for(seq_length: int, global_batch: int) -> tuple[Plan, ...]:
        key = (seq_length, global_batch)
        if key not in searched:
            spec = _at(prepared.spec, seq_length, global_batch)
            search = spec.search.model_copy(update={"top_k": 1, "effort": "fast"})
            searched[key] = plan(spec.model_copy(update={"search": search}), should_cancel=stop, alone=True).plans
        return searched[key]

    plans = []
    for each in result.plans:
        found = stop.describe(partial(_with_run, prepared, each, layouts_for))
        plans.append(each if found is None else found)
    without = sum(1 for each in plans if each.run is None)
    if without and stop.interrupted and phases_of(prepared.spec):
        note = f"there was no time to work out what the run of weeks takes under {without} of {len(plans)} plans"
        result = result.model_copy(update={"warnings": (*result.warnings, note)})
    return result.model_copy(update={"plans": tuple(plans)})


def _with_run(
    prepared: Prepared, plan: Plan, layouts_for: Callable[[int, int], tuple[Plan, ...]] | None = None
) -> Plan:
    """The plan with what the run of weeks takes under it; as it is where the spec says nothing of the run."""

    def step_of(layout: Plan, seq_length: int, global_batch: int) -> Step:
        there = replace(prepared, spec=_at(prepared.spec, seq_length, global_batch))
        count = global_batch // (layout.strategy.micro_batch_size * (layout.strategy.dp or 1))
        context = _context_of_plan(there, layout.model_copy(update={"micro_batches": count}))
        candidate = candidate_for(context, layout.strategy)
        broken = broken_rules(candidate, context.facts, there.spec.search.target)[0]
        found = predicted(layout.strategy, context, there.spec, there.identity).plan
        return Step(found.step_time_s, found.peak_memory_gib, broken[0].text if broken else None)

    link = float(prepared.context.machine.host.link_bytes_per_s)
    run = planned_run(prepared.spec, plan, step_of, host_link_bytes_per_s=link, layouts_for=layouts_for)
    return plan if run is None else plan.model_copy(update={"run": run})


def _at(spec: Spec, seq_length: int, global_batch: int) -> Spec:
    """The spec of one phase: another sequence length and batch, no run around it."""
    batch = spec.training.global_batch_size.model_copy(update={"value": global_batch, "tolerance_pct": 0.0})
    training = spec.training.model_copy(update={"seq_length": seq_length, "global_batch_size": batch, "tokens": None})
    return spec.model_copy(update={"training": training, "run": None, "strategy": None})


def budget_of(spec: Spec, *, alone: bool = False) -> Budget:
    """`solver.effort.budget` of a spec."""
    return budget(spec.search, alone=alone)


def _with_best_batch(prepared: Prepared) -> Prepared:
    """On the batch that the spec's tolerance allows and that trains fastest."""
    spec = prepared.spec
    if not spec.training.global_batch_size.tolerance_pct:
        return prepared
    batch = best_batch(spec, prepared.profile, prepared.context)
    context = choice_context(spec, prepared.profile, prepared.choice, global_batch=batch)
    return replace(prepared, context=context, identity=_identity(spec, prepared.profile, context))


def _usual(spec: Spec) -> Spec:
    return spec.model_copy(update={"search": spec.search.model_copy(update={"effort": "default"})})


def estimate(spec: Spec, *, features: frozenset[str] | None = None) -> Plan:
    """Predict the one strategy in the spec, legal or not, fitting or not.

    Parameters
    ----------
    features : exactly the features that are on; None: those of the strategy, or of the spec where it names none.

    Raises
    ------
    SpecError
        if the spec has no strategy, or its degrees contradict the cluster.
    """
    if spec.training.rl is not None:
        return estimate_rl(spec, features=features)
    if spec.strategy is None:
        raise SpecError("estimate needs a strategy", path="/strategy", hint="give tp, pp, ep, micro_batch_size ...")
    prepared = prepare(spec)
    return _with_run(prepared, predict(prepared, spec.strategy, features).plan)


def reestimate(spec: Spec, plan: Plan) -> Plan:
    """Predict a plan that a search for this spec found once more: on the cards and the batch that it uses."""
    if spec.training.rl is not None:
        return estimate_rl(spec, plan.strategy)
    prepared = prepare(spec)
    context = _context_of_plan(prepared, plan)
    return _with_run(prepared, predicted(plan.strategy, context, spec, prepared.identity).plan)


def step_time_of(spec: Spec, plan: Plan) -> float:
    """Step time of a plan predicted once more, s: of `reestimate` the number alone, for a fit that asks often."""
    prepared = prepare(spec)
    return estimated(plan.strategy, _context_of_plan(prepared, plan)).estimate.step_time_s


def unmeasured_of(spec: Spec, plan: Plan) -> UnmeasuredReport:
    """Operator shapes and message sizes of a plan that no measured efficiency covers."""
    prepared = prepare(spec)
    context = _context_of_plan(prepared, plan)
    prior = profile_of(spec.cluster.model_copy(update={"overlay": "none"}), calibrated=False)
    uses = uses_of(context, candidate_for(context, plan.strategy))
    return unmeasured([ProfileUses(prepared.profile, prior, uses)])


def lowered(spec: Spec, plan: Plan) -> tuple[Context, Candidates]:
    """What the formulas read of a plan of this spec: its context, and its strategy as a batch of one."""
    context = _context_of_plan(prepare(spec), plan)
    candidate = candidate_for(context, plan.strategy)
    return resolved(context, candidate), candidate


def predict(prepared: Prepared, strategy: Strategy, features: frozenset[str] | None = None) -> Predicted:
    """Predict a strategy of a prepared spec; `features` as in `estimate`."""
    return predicted(strategy, _context_for(prepared, strategy, features), prepared.spec, prepared.identity)


def _context_of_plan(prepared: Prepared, plan: Plan) -> Context:
    strategy = plan.strategy
    return spec_context(
        prepared.spec,
        prepared.profile,
        frozenset(strategy.features) or prepared.choice.on,
        num_npus=plan.num_npus_used,
        global_batch=plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1),
        distributed_optimizer=strategy.distributed_optimizer,
    )


def place(spec: Spec, *, features: frozenset[str] | None = None) -> Plan | None:
    """The spec's strategy with its layers, recomputation and swap chosen anew; None where nothing fits.

    Raises
    ------
    SpecError
        if the spec has no strategy, or its degrees contradict the cluster.
    """
    if spec.strategy is None:
        raise SpecError("only a strategy's layers can be placed", path="/strategy", hint="give tp, pp, ep ...")
    prepared = prepare(spec)
    context = _context_for(prepared, spec.strategy, features)
    return place_candidate(candidate_for(context, spec.strategy), context, spec, prepared.identity)


def fastest_s(spec: Spec) -> float | None:
    """Step time of the spec's fastest strategy as the sweep estimates it, before any is solved; None where none fits.

    Raises
    ------
    SpecError
        as `plan`.
    """
    prepared = prepare(spec)
    found = search_space(spec, prepared.profile, prepared.choice, prepared.context).swept.repaired_s
    fastest = float(found.min()) if len(found) else math.inf
    return fastest * prepared.identity.ratio if fastest < HOPELESS_S else None


def launch_rules(spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules:
    """Rules of the spec's target that its strategy breaks, and what the target could launch instead.

    A strategy whose degrees contradict the cluster is judged too.

    Raises
    ------
    SpecError
        if the spec has no strategy, or asks for something that can't be planned with.
    """
    if spec.strategy is None:
        raise SpecError("rules are held against a strategy", path="/strategy", hint="give tp, pp, ep ...")
    if spec.training.rl is not None:
        spec = update_alone(spec, spec.strategy)
    assert spec.strategy is not None
    prepared, target = prepare(spec), spec.search.target
    context = _context_for(prepared, spec.strategy, features)
    candidate = as_candidate(context, spec.strategy, possible=False)
    facts = {**context.facts, **facts_of_placement(spec.strategy)}
    broken = [rule for rule in broken_rules(candidate, facts, target)[0] if rule.is_told]
    return LaunchRules(
        told(broken, values_of(candidate, facts)),
        launchable(candidate, context.facts, target),
        prepared.choice.on,
    )


def timeline(spec: Spec, strategy: Strategy) -> PipelineTimeline:
    """The simulated pipeline of a strategy, slot by slot.

    Raises
    ------
    SpecError
        if the strategy's degrees contradict the cluster, or its schedule is not modelled.
    """
    prepared = prepare(spec)
    found = estimated(strategy, _context_for(prepared, strategy, None))
    drawn = pipeline_timeline(found.classes, found.candidate, found.context, 0, found.layout)
    return rescaled_timeline(drawn, prepared.identity.measured)


def _context_for(prepared: Prepared, strategy: Strategy, features: frozenset[str] | None) -> Context:
    """The context of a strategy that states its own features: exactly those are on, where it states any."""
    if features is None and not strategy.features and strategy.fsdp == prepared.context.fsdp:
        first, *others = (
            replace(each, distributed_optimizer=strategy.distributed_optimizer) for each in closed(prepared.context)
        )
        return replace(first, alternatives=tuple(others))
    on = features if features is not None else frozenset(strategy.features) or prepared.choice.on
    on = on | {"fsdp"} if strategy.fsdp else on
    return spec_context(prepared.spec, prepared.profile, on, distributed_optimizer=strategy.distributed_optimizer)


def why_not(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> WhyNot:
    """Why a strategy is not the plan: the rule it breaks, the memory it lacks, or what it would cost.

    Axes that it does not give are those of the best plan that has the others; `is_whole` says what stands as it is.

    Parameters
    ----------
    best : what a search for this spec found, where that is known; None searches.
    """
    prepared = prepare(spec)
    if not is_whole(strategy, moe=spec.model.is_moe):
        return explain_partly_given(
            Asked(spec, strategy, prepared.profile, prepared.choice, prepared.context, prepared.identity.ratio),
            search=plan,
            predicted=lambda whole: predict(prepared, whole).plan,
            best=lambda: best or plan(spec),
        )
    context = _context_for(prepared, strategy, None) if strategy.fsdp else prepared.context
    candidate = judged_candidate(context, strategy)
    return explain_rejection(
        candidate,
        context,
        spec,
        nearest=lambda: nearest_changes(
            candidate, strategy, context, spec, prepared.profile, prepared.choice, prepared.identity
        ),
        estimated=lambda: predict(prepared, strategy).plan,
        placed=lambda: place_candidate(candidate, context, spec, prepared.identity),
        best=lambda: best or plan(spec),
    )
