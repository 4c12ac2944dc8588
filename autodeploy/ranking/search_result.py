"""The PlanSet of a finished search: ranked plans, ties, gap, reference, warnings."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from autodeploy.ranking.divisibility import divisibility_warnings
from autodeploy.ranking.explain import explanation
from autodeploy.ranking.infeasible import why_infeasible
from autodeploy.ranking.pareto import pareto_set
from autodeploy.ranking.plans import Identity, plan_of_solved
from autodeploy.ranking.reference import usual_start
from autodeploy.ranking.uncertainty import tied
from autodeploy.specs.planset import (
    Counts,
    Infeasible,
    Optimality,
    Plan,
    PlanSet,
    SearchInfo,
    Status,
    Timing,
    Unrestricted,
)

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.solver.best_first import Frontier
    from autodeploy.solver.search_space import Searched
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile


def objective_value(plan: Plan, objective: str) -> float:
    """What is minimised: the plan with the least comes first."""
    if objective == "tokens_per_s_per_npu":
        return -plan.tokens_per_s_per_npu
    if objective == "peak_memory":
        return plan.peak_memory_gib
    if objective == "npu_hours":
        return plan.step_time_s * plan.num_npus_used
    return plan.step_time_s


def finish(
    spec: Spec,
    profile: Profile,
    context: Context,
    searched: Searched,
    frontier: Frontier,
    identity: Identity,
    *,
    search_id: str,
    created_at: str,
    timing: tuple[float, float, float],
    out_of_time: bool,
    unrestricted: Unrestricted,
) -> PlanSet:
    """Rank, explain and certify what the search found."""
    plans = [plan_of_solved(solved, spec, identity) for solved in frontier.best]
    bound = _bound(frontier)
    ranked = _ranked(plans, spec.search, bound)
    gap = max(0.0, (ranked[0].step_time_s - bound) / ranked[0].step_time_s) if ranked and bound is not None else None
    proved = gap is not None and gap <= 1e-9
    infeasible: Infeasible | None = None
    if not ranked and not frontier.cancelled:
        infeasible = why_infeasible(spec, profile, context, searched)
    enumerate_s, solve_s, started = timing
    counts = searched.counts
    rest = len(searched.candidates) - frontier.solved
    return PlanSet(
        search=SearchInfo(
            id=search_id,
            spec=spec.model_dump(mode="json"),
            spec_hash=identity.spec_hash,
            profile_hash=identity.profile_hash,
            engine_version=identity.engine_version,
            created_at=created_at,
        ),
        status=_status(bool(ranked), proved, frontier.cancelled and not out_of_time),
        reproducible=not out_of_time and spec.search.mode == "reproducible" and not frontier.cancelled,
        optimality=Optimality(
            objective=spec.search.objective,
            bound=bound,
            relaxation=_relaxation(frontier) if bound is not None else "",
            gap=gap,
            proved=proved,
        ),
        counts=Counts(
            enumerated=counts.enumerated,
            rejected=counts.rejected,
            too_big=counts.too_big,
            pruned=max(0, rest),
            solved=frontier.solved,
        ),
        timing=Timing(enumerate_s=enumerate_s, solve_s=solve_s, total_s=time.monotonic() - started),
        plans=tuple(ranked),
        reference=usual_start(spec, profile, context, identity) if ranked else None,
        unrestricted=unrestricted,
        pareto=pareto_set(plans, ranked),
        warnings=(
            *_batch_note(spec, context),
            *(divisibility_warnings(spec, profile, context, searched) if ranked else ()),
        ),
        infeasible=infeasible,
    )


def _batch_note(spec: Spec, context: Context) -> tuple[str, ...]:
    """Which batch was planned, where the spec's tolerance allowed another than its own."""
    own = spec.training.global_batch_size.value
    if context.global_batch == own:
        return ()
    return (f"planned with a global batch of {context.global_batch:,} instead of {own:,}, within its tolerance",)


def _bound(frontier: Frontier) -> float | None:
    """No plan of the whole space is faster: the least of the open candidates' and the solved problems' bounds."""
    if not frontier.best:
        return None
    proven = min(s.solution.bound_s for s in frontier.best)
    bound = min(proven, frontier.open_bound_s)
    return None if math.isinf(bound) else bound


def _relaxation(frontier: Frontier) -> str:
    """What the bound of the whole space rests on: that of the candidate or of the plan that has the least."""
    plan = min(frontier.best, key=lambda s: (s.solution.bound_s, s.index)).solution
    return plan.relaxation if plan.bound_s <= frontier.open_bound_s else frontier.relaxation


def _status(found: bool, proved: bool, cancelled: bool) -> Status:
    if cancelled:
        return "cancelled"
    if not found:
        return "infeasible"
    return "optimal" if proved else "feasible"


def _ranked(plans: list[Plan], search: SearchSpec, bound: float | None) -> list[Plan]:
    """The best K in order of the objective, with their gaps, ties and what sets them apart."""
    order = sorted(plans, key=lambda p: (objective_value(p, search.objective), p.plan_id))[: search.top_k]
    ranked: list[Plan] = []
    for number, plan in enumerate(order, start=1):
        other = order[1] if number == 1 and len(order) > 1 else (order[0] if number > 1 else None)
        tie = next((first.rank for first in ranked if tied(first, plan)), None)
        gap = max(0.0, (plan.step_time_s - bound) / plan.step_time_s) if bound is not None else None
        ranked.append(
            plan.model_copy(
                update={"rank": number, "tie_with": tie, "gap": gap, "explanation": explanation(plan, other)}
            )
        )
    return ranked
