"""Plans that no other plan beats in time, memory and cards at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.specs.planset import ParetoPoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autodeploy.specs.planset import Plan


def pareto_set(plans: Iterable[Plan], ranked: Sequence[Plan]) -> tuple[ParetoPoint, ...]:
    """Of everything that was solved and kept, what is not beaten in all three; the fastest first.

    Plans are compared by the time of a token, since their batches may differ.
    """
    ranks = {plan.plan_id: plan.rank for plan in ranked}
    points = list(plans)
    best = [plan for plan in points if not any(_beats(other, plan) for other in points)]
    unique = {plan.plan_id: plan for plan in sorted(best, key=lambda p: (-p.tokens_per_s, p.plan_id))}
    return tuple(
        ParetoPoint(
            plan_id=plan.plan_id,
            rank=ranks.get(plan.plan_id),
            strategy=plan.strategy,
            step_time_s=plan.step_time_s,
            tokens_per_s=plan.tokens_per_s,
            peak_memory_gib=plan.peak_memory_gib,
            num_npus=plan.num_npus_used,
        )
        for plan in unique.values()
    )


def _beats(first: Plan, second: Plan) -> bool:
    """No worse in anything and better in something."""
    ours = (-first.tokens_per_s, first.peak_memory_gib, first.num_npus_used)
    theirs = (-second.tokens_per_s, second.peak_memory_gib, second.num_npus_used)
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))
