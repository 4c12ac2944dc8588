"""Two lanes of a device: what vector units do while matrix units work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from autodeploy.evaluation.layers.exchanges import ExchangeTimes
    from autodeploy.evaluation.layers.operator_time import OperatorTime
    from cost_models.arrays import Floats

# Reordering of rows on either side of the experts, with the exchange beside it.
VECTOR_LANE = {"dispatch": ("permute", "sort_by_expert"), "combine": ("sort_by_rank", "unpermute")}
SHARED = ("shared_up_proj", "shared_down_proj")
EXPERTS = ("expert_up_proj", "expert_down_proj")


def beside_matrix_work_s(times: dict[str, OperatorTime], exchanged: ExchangeTimes, *, backward: bool) -> Floats:
    """Seconds of a pass in which rows are reordered on vector units beside independent matrix work.

    Notes
    -----
    Forward, the shared experts' products do not depend on the routed rows: half of them beside the way to the experts,
    half beside the way back. Backward, rows return to the experts beside the shared experts' gradients, and leave them
    beside the experts' weight gradients. An exchange that already runs behind the same work is in series with the
    reordering, so it takes its share of the window first: hidden = min(reordering, matrix work - exchange behind it).
    """
    hidden = np.zeros(1)
    for side, names in VECTOR_LANE.items():
        moved = np.asarray(sum((_pass_s(times[n], backward) for n in names if n in times), np.zeros(1)))
        window = np.maximum(0.0, _window_s(times, side, backward) - exchanged.behind.get((side, backward), np.zeros(1)))
        hidden = hidden + np.minimum(moved, window)
    return np.asarray(hidden)


def _pass_s(time: OperatorTime, backward: bool) -> Floats:
    return time.backward_s if backward else time.forward_s


def _window_s(times: dict[str, OperatorTime], side: str, backward: bool) -> Floats:
    shared = [times[name] for name in SHARED if name in times]
    if not backward:
        return np.asarray(sum((t.forward_s for t in shared), np.zeros(1)) / 2.0)
    if side == "combine":
        return np.asarray(sum((t.backward_s for t in shared), np.zeros(1)))
    experts = [times[name] for name in EXPERTS if name in times]
    return np.asarray(sum((t.weight_gradient_s for t in experts), np.zeros(1)))
