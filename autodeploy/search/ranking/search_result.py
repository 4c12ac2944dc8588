"""The PlanSet of a finished search: ranked plans, ties, gap, reference, warnings."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from autodeploy.calibration.overlays import covariance_of
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.search.choices.effort import cores
from autodeploy.search.placement.evaluate import OPTIMAL_GAP
from autodeploy.search.ranking.counterfactuals import counterfactual, stepped
from autodeploy.search.ranking.diversity import outline, pareto_set
from autodeploy.search.ranking.explanation import explanation, memory_explanation
from autodeploy.search.ranking.infeasible import divisibility_warnings, why_infeasible
from autodeploy.search.ranking.measured_speed import slower_than_measured
from autodeploy.search.ranking.plans import Identity, plans_of_solved, step_s_of_solved, strategy_of_solved
from autodeploy.search.ranking.selection import (
    chosen,
    fastest_of,
    objective_value,
    ranking_of,
    solved_strategies,
    valley_of,
    weighed,
)
from autodeploy.search.ranking.uncertainty import tied
from autodeploy.space.feature_choice import choice_of
from autodeploy.space.tree import OPTIMIZER_STATE_AXES
from autodeploy.specs.planset import (
    Counts,
    Infeasible,
    Optimality,
    Plan,
    PlanSet,
    RiskRanking,
    SearchInfo,
    Status,
    Timing,
    Unrestricted,
)
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from autodeploy.kit.deadline import Deadline
    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.search.ranking.advice import Advice
    from autodeploy.search.ranking.counterfactuals import Step
    from autodeploy.search.ranking.one_strategy import Prepared
    from autodeploy.search.ranking.reference_plans import ReferencePlans
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.covariance import Covariance


USUAL_GAP = 0.05
"""A gap that is larger is told: up to here the default effort proves most searches."""


@dataclass(frozen=True, slots=True)
class SearchLabel:
    """Name of a search, its begin by the wall and by the monotonic clock, and the seconds until the space was known."""

    search_id: str
    created_at: str
    started: float
    enumerated_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a search.

    searched : the space and its bounds. frontier : the plans, and what is left open. unrestricted : what the target
        costs. advice : the ranking by risk; without it plans are ranked by the objective. beside : what stands beside
        the plans; without it they stand alone. steps : of the first plan's axes, of which there are plans.
    only_first : whether the first plan is all that is described.
    """

    searched: SearchSpace
    frontier: SearchState
    unrestricted: Unrestricted
    advice: Advice | None = None
    beside: ReferencePlans | None = None
    steps: Sequence[Step] = ()
    only_first: bool = False


def finish(prepared: Prepared, outcome: Outcome, label: SearchLabel, deadline: Deadline) -> PlanSet:
    """Rank, explain and certify what the search found.

    deadline : ends the search; in a hurry what is not a plan, and the last of the plans, is left out.
    """
    solve_s = time.monotonic() - label.started - label.enumerated_s
    spec, profile, context, identity = prepared.spec, prepared.profile, prepared.context, prepared.identity
    searched, frontier, advice, beside = outcome.searched, outcome.frontier, outcome.advice, outcome.beside
    hurried = deadline.finish()
    order, neutral = chosen(frontier, advice, spec.search)
    if outcome.only_first:
        order, neutral = order[:1], []
    pool = frontier.best if advice is None else [each.solved for each in advice.weighed]
    moved = [] if hurried else stepped(outcome.steps, [*order[:1], *pool])
    everything = [*order, *neutral, *(each for _, each in moved)]
    documents = _described(everything, spec, identity, deadline, hurried=hurried)
    whole = [weighed(plan, advice, solved, identity.ratio) for plan, solved in zip(documents, everything, strict=False)]
    plans, apart = whole[: len(order) + len(neutral)], whole[len(order) + len(neutral) :]
    order, neutral = order[: len(plans)], neutral[: max(0, len(plans) - len(order))]
    reference: Plan | None = None
    divided: list[str] = []
    if frontier.best and beside is not None:
        reference, near = beside.result()
        divided = divisibility_warnings(context, near, searched.swept.after_recompute_s)
    bound = proven_bound(frontier, spec.search.objective, identity.ratio)
    for_memory = spec.search.objective == "peak_memory"
    # Ties are of predicted times: errors of memory are a few percent, and nobody measured which order they leave.
    covariance = None if for_memory else covariance_of(profile)
    words = memory_explanation if for_memory else explanation
    ranked = ranked_plans(plans[: len(order)], spec.search.objective, bound, words, covariance)
    first = min(plans, key=partial(_neutral_order, spec.search.objective), default=None)
    gap = None if first is None else _gap(first, spec.search.objective, bound)
    infeasible: Infeasible | None = None
    if not ranked and not frontier.cancelled and beside is not None:
        infeasible = deadline.describe(lambda: why_infeasible(spec, profile, context, searched))
    valley = deadline.last(lambda: valley_of(searched, order, ranked))
    changed = (counterfactual(step, plan, ranked[0]) for (step, _), plan in zip(moved, apart, strict=False))
    relaxation = _relaxation(frontier, spec.search.objective) if bound is not None else ""
    return plan_set(
        Searching(spec, identity, label, deadline, solve_s),
        ranked,
        Proof(bound, gap, relaxation, OPTIMAL_GAP, () if context.stack is None else context.stack.not_searched),
        cancelled=frontier.cancelled,
        counts=_counts(searched, frontier),
        reference=reference,
        unrestricted=outcome.unrestricted,
        pareto=pareto_set(plans, ranked),
        solved=solved_strategies(searched, frontier, identity.ratio),
        risk=_ranking(advice, order, ranked),
        fastest=None if first is None else fastest_of(first, ranked, advice),
        valley=valley,
        counterfactuals=tuple(sorted(changed, key=lambda each: -each.step_time_s)),
        rescaled=identity.measured,
        features_off={} if beside is None else choice_of(spec, profile).off_everywhere,
        warnings=(
            *spec.to_check,
            *_notes(spec, context.global_batch, gap, advice, out_of_time=deadline.out_of_time),
            *slower_than_measured(ranked, identity.measured),
            *divided,
        ),
        infeasible=infeasible,
    )


@dataclass(frozen=True, slots=True)
class Searching:
    """A search that found its plans: its spec, identity and clock. solve_s : from the known space to the last plan."""

    spec: Spec
    identity: Identity
    label: SearchLabel
    deadline: Deadline
    solve_s: float


@dataclass(frozen=True, slots=True)
class Proof:
    """Proof of the best plan. optimal_gap : the largest gap of a plan that counts as the best there is.
    not_searched : what the release launches beside the strategies that it holds for.
    """

    bound: float | None
    gap: float | None
    relaxation: str
    optimal_gap: float
    not_searched: tuple[str, ...] = ()


def plan_set(
    searching: Searching, ranked: Sequence[Plan], proof: Proof, *, cancelled: bool = False, **further: Any
) -> PlanSet:
    """The PlanSet of ranked plans, of pre-training and post-training alike; `further` : its other fields."""
    spec, identity, label = searching.spec, searching.identity, searching.label
    out_of_time = searching.deadline.out_of_time
    proved = proof.gap is not None and proof.gap <= proof.optimal_gap
    return PlanSet(
        search=SearchInfo(
            id=label.search_id,
            spec=spec.model_dump(mode="json"),
            spec_hash=identity.spec_hash,
            profile_hash=identity.profile_hash,
            engine_version=identity.engine_version,
            created_at=label.created_at,
        ),
        status=_status(bool(ranked), proved, cancelled and not (out_of_time and ranked)),
        reproducible=not out_of_time and spec.search.mode == "reproducible" and not cancelled,
        optimality=Optimality(
            objective=spec.search.objective,
            bound=proof.bound,
            relaxation=proof.relaxation,
            gap=proof.gap,
            proved=proved,
            not_searched=proof.not_searched,
        ),
        timing=Timing(
            enumerate_s=label.enumerated_s, solve_s=searching.solve_s, total_s=time.monotonic() - label.started
        ),
        plans=tuple(ranked),
        **further,
    )


def no_plan_in_time(spec: Spec) -> SpecError:
    """The refusal of a time limit within which no plan was found."""
    limit = Message("common.time_limit", limit=spec.search.time_limit_s)
    return SpecError(limit, path="/search/time_limit_s", hint=Message("common.raise_time_limit"))


def _described(
    solutions: Sequence[Solved], spec: Spec, identity: Identity, deadline: Deadline, *, hurried: bool
) -> list[Plan]:
    """The documents of plans; in a hurry one after the other, as many as there is time for."""
    if not hurried:
        together = deadline.describe(lambda: plans_of_solved(solutions, spec, identity))
        if together is not None:
            return together
    documents: list[Plan] = []
    for solved in solutions:
        one = deadline.last(partial(plans_of_solved, [solved], spec, identity))
        if one is None:
            break
        documents += one
        if deadline.is_past:
            break
    if solutions and not documents and deadline.out_of_time:
        return plans_of_solved(solutions[:1], spec, identity)  # was found in time, and is told a moment late
    return documents


def _counts(searched: SearchSpace, frontier: SearchState) -> Counts:
    """Fates of the strategies of the space."""
    counts = searched.counts
    return Counts(
        enumerated=counts.enumerated,
        rejected=counts.rejected,
        too_big=counts.too_big,
        pruned=max(0, len(searched.candidates) - frontier.solved),
        solved=frontier.solved,
    )


def strategy_note(spec: Spec) -> tuple[str, ...]:
    """That a search does not plan the strategy that stands in its spec, and what does."""
    if spec.strategy is None:
        return ()
    return (Message("ranking.strategy_not_followed"),)


def _notes(
    spec: Spec, global_batch: int, gap: float | None, advice: Advice | None, *, out_of_time: bool
) -> Iterator[str]:
    """Notes on a search: ways in which it is another than the spec asked for, or than most are."""
    search, own = spec.search, spec.training.global_batch_size.value
    if global_batch != own:
        yield Message("ranking.planned_with_global_batch", planned=global_batch, asked=own)
    if search.mode != "reproducible":
        yield Message("ranking.fast_mode_varies", cores=cores())
    yield from strategy_note(spec)
    if gap is not None and gap > max(search.gap, USUAL_GAP) * (1.0 + 1e-3) and search.objective != "peak_memory":
        yield Message("ranking.gap_remains", gap=100.0 * gap)
    if out_of_time:
        yield Message("ranking.time_limit_reached", limit=f"{search.time_limit_s:g}")
    if advice is not None and advice.least_p_fits < search.risk_terms.floor:
        yield Message(
            "ranking.floor_not_met", floor=100.0 * search.risk_terms.floor, chance=100.0 * advice.least_p_fits
        )


def _ranking(advice: Advice | None, order: Sequence[Solved], ranked: Sequence[Plan]) -> RiskRanking:
    """Criterion of the ranking, and the shown plan that is launched where the first does not start."""
    if advice is None:
        return ranking_of(None, None)
    instead = advice.else_launched
    shown = {id(solved): plan.plan_id for solved, plan in zip(order, ranked, strict=True)}
    profile = advice.weighed[0].solved.context.profile
    return ranking_of(advice, profile, advice.price, None if instead is None else shown.get(id(instead.solved)))


def proven_bound(frontier: SearchState, objective: str, ratio: float) -> float | None:
    """No plan of the whole space is faster: the least of the open candidates' and the solved problems' bounds.

    For the objective peak_memory GiB instead of seconds: no plan takes less. None: nothing is proven, of a bound of 0
    either.
    """
    if not frontier.best:
        return None
    if objective == "peak_memory":
        return frontier.least_bytes / GIB if frontier.least_bytes else None
    proven = min(s.solution.bound_s for s in frontier.best)
    bound = min(proven, frontier.open_bound_s)
    return ratio * bound if 0.0 < bound < math.inf else None


def _relaxation(frontier: SearchState, objective: str) -> str:
    """Relaxation that the bound of the whole space rests on: of the candidate or plan that has the least."""
    if objective == "peak_memory":
        return Message("ranking.relaxed_layers")
    plan = min(frontier.best, key=lambda s: (s.solution.bound_s, s.index)).solution
    return plan.relaxation if plan.bound_s <= frontier.open_bound_s else frontier.relaxation


def _status(any_plan: bool, proved: bool, cancelled: bool) -> Status:
    if cancelled:
        return "cancelled"
    if not any_plan:
        return "infeasible"
    return "optimal" if proved else "feasible"


def ranked_plans(
    order: Sequence[Plan],
    objective: str,
    bound: float | None,
    words: Callable[[Plan, Plan | None], str] = explanation,
    covariance: Covariance | None = None,
) -> list[Plan]:
    """Plans in order of rank with their gaps, ties and what sets them apart: the first from the second, others from it.

    covariance : of the profile's numbers; None: no ties are told.
    """
    ranked: list[Plan] = []
    for number, plan in enumerate(order, start=1):
        other = order[1] if number == 1 and len(order) > 1 else (order[0] if number > 1 else None)
        tie = None
        if covariance is not None:
            tie = next((first.rank for first in ranked if tied(first, plan, covariance)), None)
        changes = {"rank": number, "tie_with": tie, "gap": _gap(plan, objective, bound)}
        ranked.append(plan.model_copy(update=changes | {"explanation": words(plan, other)}))
    return ranked


def _gap(plan: Plan, objective: str, bound: float | None) -> float | None:
    """Gap between the plan and the best that any could be."""
    return gap_of(plan.highest_gib if objective == "peak_memory" else plan.step_time_s, bound)


def gap_of(reached: float, bound: float | None) -> float | None:
    """The same of what a plan reaches."""
    return None if bound is None else max(0.0, (reached - bound) / reached)


def _neutral_order(objective: str, plan: Plan) -> tuple[float, float, str]:
    return objective_value(plan, objective), plan.step_time_s, plan.plan_id


# What a search for layouts found, for a caller that reads nothing but their strategies.
@dataclass(frozen=True)
class LayoutsFound:
    """Strategies in the order of their rank, and then their other ways to keep optimizer states.

    gap : by which the fastest of them may be slower than any other; None: unknown. enumerated : strategies of the
    space.
    """

    strategies: tuple[Strategy, ...]
    gap: float | None
    enumerated: int


def layouts_found(
    prepared: Prepared, searched: SearchSpace, frontier: SearchState, advice: Advice | None
) -> LayoutsFound:
    """The strategies of the plans that `search_result.finish` describes, with the gap of those."""
    search, ratio = prepared.spec.search, prepared.identity.ratio
    order, neutral = chosen(frontier, advice, search)
    if advice is not None:
        order = _with_other_ways(order, [each.solved for each in advice.weighed])
    first = min([*order, *neutral], key=lambda each: each.solution.step_s, default=None)
    bound = proven_bound(frontier, search.objective, ratio)
    return LayoutsFound(
        strategies=tuple(strategy_of_solved(each, frontier.solver) for each in order),
        gap=None if first is None else gap_of(ratio * step_s_of_solved(first), bound),
        enumerated=searched.counts.enumerated,
    )


def _with_other_ways(order: Sequence[Solved], ranked: Sequence[Solved]) -> list[Solved]:
    """Plans, and of the same outlines the first in the ranking of each way to keep optimizer states, also where a plan
    to launch instead keeps them so: which is best may be another one where more than a step is counted.
    """

    def way(solved: Solved) -> tuple[Hashable, ...]:
        return outline(solved), *(float(getattr(solved.candidate, name)[0]) for name in OPTIMIZER_STATE_AXES)

    outlines = {outline(each) for each in order}
    firsts: dict[Hashable, Solved] = {}
    for each in ranked:
        if outline(each) in outlines:
            firsts.setdefault(way(each), each)
    return [*order, *(each for each in firsts.values() if all(each is not shown for shown in order))]
