"""Which plans make the answer, in which order, and what an answer says of the ranking as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.calibration.evidence import realised_share
from autodeploy.ranking.advice import DRAWS
from autodeploy.ranking.fastest import bets_of
from autodeploy.ranking.unproven import unproven_in
from autodeploy.ranking.variety import Found, different, outline, valley
from autodeploy.specs.planset import BoxNumber, Fastest, RiskRanking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.ranking.advice import Advice
    from autodeploy.ranking.regret_order import RiskAdvice
    from autodeploy.solver.outer.candidate import Solved
    from autodeploy.solver.outer.frontier import SearchState
    from autodeploy.solver.search_space import Searched
    from autodeploy.specs.planset import Plan, Valley
    from autodeploy.specs.search import SearchSpec


def objective_value(plan: Plan, objective: str) -> float:
    """What is minimised: the plan with the least comes first."""
    if objective == "tokens_per_s_per_npu":
        return -plan.tokens_per_s_per_npu
    if objective == "peak_memory":
        return plan.peak_memory_gib
    if objective == "npu_hours":
        return plan.step_time_s * plan.num_npus_used
    if objective == "time_to_train" and plan.run is not None and plan.run.days is not None:
        return plan.run.days
    return plan.step_time_s


def weight_of(context: Context, objective: str) -> float:
    """What a second of a plan's step counts in the objective: plans on fewer cards or of another batch are compared."""
    if objective == "tokens_per_s_per_npu":
        return context.num_npus / context.global_batch
    return float(context.num_npus) if objective == "npu_hours" else 1.0


def chosen(frontier: SearchState, advice: Advice | None, search: SearchSpec) -> tuple[list[Solved], list[Solved]]:
    """The plans of the answer in order of rank, and more of the search's best, which only the Pareto set needs.

    The fastest plan is among them, as the last where it is ranked behind, unless one that differs from it in placement
    and memory choices alone is.
    """
    if advice is None:
        best = sorted(frontier.best, key=lambda each: each.solution.step_s * weight_of(each.context, search.objective))
        order = frontier.best if search.objective == "peak_memory" else best
    else:
        order = [each.solved for each in advice.weighed]
    outline_of = id if search.distinct == "placements" else outline
    kept = different(order, search.top_k, outline_of)
    if advice is not None and len(kept) > 1:
        fastest = advice.fastest.solved
        if outline_of(fastest) not in {outline_of(each) for each in kept}:
            kept[-1] = fastest
    others = [each for each in frontier.best[: search.top_k] if all(each is not other for other in kept)]
    return kept, others


def weighed(plan: Plan, advice: Advice | None, solved: Solved, ratio: float) -> Plan:
    """A plan with how it stands in the ranking by risk; ratio: of measured times to predicted ones."""
    standing = None if advice is None else next((each for each in advice.weighed if each.solved is solved), None)
    if standing is None:
        return plan
    return plan.model_copy(
        update={
            "expected_step_time_s": ratio * standing.expected_s,
            "regret_p80_pct": None if standing.regret is None else 100.0 * standing.regret,
        }
    )


def ranking_of(advice: RiskAdvice | None) -> RiskRanking:
    """What plans were ranked by."""
    if advice is None:
        return RiskRanking(risk="neutral", compared=0, draws=0, least_p_fits=0.0)
    (share, sigma), box = realised_share(), advice.responses.box
    influences = advice.responses.influence([each.row for each in advice.weighed if each.regret is not None])
    numbers = tuple(
        BoxNumber(
            name=uncertain.name,
            meaning=uncertain.meaning,
            low=box.factors(uncertain)[0],
            high=box.factors(uncertain)[1],
            basis=uncertain.basis,
            influence=round(float(influence), 6),
        )
        for uncertain, influence in zip(box.numbers, influences, strict=True)
    )
    return RiskRanking(
        risk="averse",
        compared=len(advice.weighed),
        draws=DRAWS,
        least_p_fits=advice.least_p_fits,
        proven_share=share,
        proven_share_sigma=sigma,
        box=numbers,
    )


def fastest_of(first: Plan, ranked: Sequence[Plan], advice: RiskAdvice | None) -> Fastest:
    """The plan that is fastest by the predicted times, and what it bets on."""
    return Fastest(
        plan_id=first.plan_id,
        rank=next((plan.rank for plan in ranked if plan.plan_id == first.plan_id), None),
        step_time_s=first.step_time_s,
        p_fits=first.p_fits if first.p_fits is not None else 1.0,
        strategy=first.strategy,
        bets=() if advice is None else bets_of(advice),
    )


def valley_of(searched: Searched, order: Sequence[Solved], ranked: Sequence[Plan]) -> Valley | None:
    """How flat the ground around the fastest plan is."""
    if not ranked:
        return None
    plans = [
        Found(plan.plan_id, solved.index, plan.step_time_s, len(unproven_in(plan.evidence)))
        for plan, solved in zip(ranked, order, strict=True)
    ]
    return valley(searched.candidates, searched.swept.after_recompute_s, plans)
