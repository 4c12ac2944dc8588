"""Intervals of plans and ties between them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autodeploy.calibration.coverage import Spread, coverage, spread_of
from autodeploy.calibration.spreads import shares_node
from autodeploy.specs.planset import Plan, Uncertainty

if TYPE_CHECKING:
    from autodeploy.evaluation.context import Context
    from autodeploy.strategies.candidates import Candidates

Z_ONE_IN_FIVE = 0.8416  # of a normal distribution, one-sided
# Features whose effect on time rests on records; the others are on in every record or change no time.
_MEASURED_KINDS = ("adaptive_pipe", "hierarchical_a2a", "moe_alltoall_overlap", "shared_expert_overlap")


def run_of(candidate: Candidates, context: Context) -> dict[str, object]:
    """A candidate as the coverage table describes runs."""
    axes = candidate.axes_at(0)
    features = [name for name in _MEASURED_KINDS if name in context.features and context.model.is_moe]
    paired = axes["schedule"] in {"adaptive_pipe", "dualpipev", "dualpipe"}  # the same windows hide the exchange
    used = [f for f in features if (f == "adaptive_pipe") == paired and f != "hierarchical_a2a"]
    if axes["moe_dispatcher"] == "hierarchical":
        used.append("hierarchical_a2a")
    return {
        "moe": context.model.is_moe,
        "ranks": context.world,
        "shares_node": shares_node(context.world, int(axes["tp"]), context.node_ranks),
        "seq_length": context.seq_length,
        "features": used,
        **{axis: int(axes[axis]) for axis in ("tp", "pp", "cp", "ep")},
    }


def interval(step_time_s: float, candidate: Candidates, context: Context) -> Uncertainty:
    """80 % interval of a step time, what it rests on and where it extrapolates."""
    spread: Spread = spread_of(context.family, run_of(candidate, context))
    low, high = spread.interval(step_time_s)
    return Uncertainty(
        low_s=low,
        high_s=high,
        basis=spread.basis,
        nearest_record=spread.nearest_record,
        extrapolated=spread.extrapolated,
    )


def tied(first: Plan, second: Plan) -> bool:
    """Whether the order of two plans on one cluster is uncertain: wrong with a probability above one in five.

    Errors that both plans share cancel in their ratio; what is left is the spread over pairs of records.
    """
    resolution = Z_ONE_IN_FIVE * float(coverage()["pair_log_sigma"])
    return abs(math.log(first.step_time_s / second.step_time_s)) < resolution
