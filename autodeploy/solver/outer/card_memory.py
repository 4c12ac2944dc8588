"""What a solved candidate takes of the card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.evaluation.stages.inner_problem import stage_bytes

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.stages.inner_problem import InnerProblem
    from autodeploy.solver.inner.evaluate import InnerPlan
    from autodeploy.solver.outer.candidate import Solved


def card_bytes(solved: Solved) -> float:
    """Bytes on the card of the fullest stage of a plan."""
    return bytes_on_card(solved.problem, solved.context, held_bytes(solved.problem, solved.plan))


def bytes_on_card(problem: InnerProblem, context: Context, held_bytes: float) -> float:
    """Bytes on the card when the allocator holds so many: what the limit leaves out is the same for any limit."""
    return context.limit_bytes - (problem.limit_bytes - held_bytes) * (1.0 + context.machine.fragmentation)


def held_bytes(problem: InnerProblem, plan: InnerPlan) -> float:
    """Bytes that the allocator holds on the fullest stage."""
    return float(stage_bytes(problem, plan.layout[None], plan.applied[None]).max())
