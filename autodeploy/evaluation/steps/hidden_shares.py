"""Shares of communication that run behind computation."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.stages.build_problem import chunk_sums

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import ChunkTimes, InnerProblem
    from autodeploy.evaluation.stages.step_classes import StepClasses
    from cost_models.arrays import Floats, Ints


def hidden_shares(
    problem: InnerProblem,
    classes: StepClasses,
    index: int,
    layers: Ints,
    times: ChunkTimes,
    pairs: Ints,
    stage: int,
    breakdown: dict[str, float],
) -> dict[str, float]:
    """Shares of communication, by lane: of experts over all stages, of the others on the stage that paces.

    ep_share_steady: of what runs inside fused pairs (of all where the schedule has none); ep_share_step: of the whole
    step, warm-up and cool-down included, so it depends on the number of micro batches; paired_share: of all forwards
    that run in a pair. layers [pp, vpp, class], pairs [pp, f, b] of the schedule. Prediction modules count too: they
    run in a pair, and no schedule overlaps theirs.
    """

    def chunks(name: str) -> Floats:
        return chunk_sums(problem, classes, index, layers, attrgetter(f"cost.{name}"))

    runs, counts = problem.chunk_micro_batches, pairs.astype(np.float64)
    total, forward, backward = (chunks(f"ep_{what}_s") for what in ("total", "shown_forward", "shown_backward"))
    hidden = float((times.hidden_exchange_s[0] * counts).sum())
    step = _share(runs * float((forward + backward).sum()) - hidden, runs * float(total.sum()))
    steady = step
    if counts.any():
        forwards, backwards = counts.sum(axis=2), counts.sum(axis=1)
        exposed = float((forward * forwards).sum() + (backward * backwards).sum()) - hidden
        # Both passes exchange as much.
        steady = _share(exposed, float((total * (forwards + backwards)).sum()) / 2.0)
    return {
        "ep_share_steady": steady,
        "ep_share_step": step,
        "paired_share": float(counts.sum()) / (runs * problem.vpp * problem.pp),
        **{
            f"{lane}_share": _share(
                breakdown[f"exposed_{lane}_s"],
                runs * float(chunks(f"{lane}_total_s")[stage].sum()),
            )
            for lane in ("tp", "cp")
        },
    }


def _share(exposed_s: float, total_s: float) -> float:
    return min(1.0, max(0.0, 1.0 - exposed_s / total_s)) if total_s > 0.0 else 0.0
