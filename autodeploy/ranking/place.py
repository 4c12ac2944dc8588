"""The best placement and memory choices of one outer strategy, as a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.evaluation.layers.alternatives import resolved
from autodeploy.ranking.plans import Identity, plans_of_solved
from autodeploy.solver.outer.candidate import solve_candidate

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.candidates import Candidates


def place(candidate: Candidates, context: Context, spec: Spec, identity: Identity) -> Plan | None:
    """The plan of one candidate with its layers, recomputation and swap solved quickly; None where nothing fits."""
    solved = solve_candidate(candidate, resolved(context, candidate), 0, None)
    if solved.solution.plan is None:
        return None
    return plans_of_solved([solved], spec, identity)[0].model_copy(update={"rank": 1})
