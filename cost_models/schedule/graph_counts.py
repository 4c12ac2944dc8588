"""Whole numbers of stages, by formula, or for an order of its own, read from its graph.

Parameters
----------
read : what is read of a graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.schedule.kinds import schedule
from cost_models.schedule.orders import forwards_ahead, operation_order
from cost_models.schedule.simulation import makespan_s, pair_counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from cost_models.arrays import Counts


def of_stages(
    read: Callable[[str, int, int, int], Counts],
    kind: str,
    stage: Counts,
    pp: Counts,
    vpp: Counts,
    micro_batches: Counts,
) -> Counts:
    """Values of `read` for (kind, pp, vpp, micro batches) and every stage [pp], at the stages of candidates [n].

    It is asked once for each pipeline that there is. A pipeline whose order does not exist has 0.
    """
    given = np.broadcast_arrays(pp, vpp, micro_batches, stage)
    pipelines = np.stack([np.asarray(values, dtype=np.int64).ravel() for values in given[:3]])
    places = np.asarray(given[3], dtype=np.int64).ravel()
    counts = np.zeros(places.shape)
    distinct, which = np.unique(pipelines, axis=1, return_inverse=True)
    for number, (p, v, m) in enumerate(distinct.T.tolist()):
        of_graph = which.ravel() == number
        try:
            values = np.asarray(read(kind, p, v, m), dtype=np.float64)
        except ValueError:
            continue
        counts[of_graph] = values[places[of_graph]]
    return counts.reshape(given[3].shape)


def paired_slots(kind: str, pp: int, vpp: int, micro_batches: int) -> Counts:
    """Pairs that every stage runs [pp]."""
    return np.asarray(pair_counts(kind, pp, vpp, micro_batches).sum(axis=(1, 2)))


def idle_stages(kind: str, pp: int, vpp: int, micro_batches: int) -> Counts:
    """Idle time of equal stages, in passes of one micro batch through a whole stage, where pairs hide nothing [pp].

    A backward takes twice as long as a forward.
    """
    order = operation_order(kind, pp, vpp, micro_batches)
    forward = np.full((1, pp, vpp), 1.0 / (3.0 * vpp))
    total = float(makespan_s(order, forward, 2.0 * forward)[0])
    return np.full(pp, total - micro_batches)


def fused_pairs(
    kind: str, stage: Counts, pp: Counts, vpp: Counts, micro_batches: Counts, size: Counts | None = None
) -> Counts:
    """Slots of a stage [n] that run a forward against a backward: `pair_counts` over all its chunks, by formula.

    With two copies: as folded on half of the devices with half of the micro batches, counted from the nearer end.
    size: `group_size`, where they are known already.
    """
    how = schedule(kind)
    if not how.pairs:
        return np.zeros_like(stage)
    if how.own_order:
        return of_stages(paired_slots, kind, stage, pp, vpp, micro_batches)
    if not how.ends_meet:
        pairs = np.maximum(micro_batches * vpp - forwards_ahead(kind, stage, pp, vpp, micro_batches, size), 0)
        if how.gathers:
            pairs = np.where((micro_batches <= pp) & (vpp > 1), 0, pairs)
        return np.asarray(pairs)
    if how.copies > 1:
        stage, pp, micro_batches = np.minimum(stage, pp - 1 - stage), pp // 2, micro_batches // 2
    return _dual_pairs(stage, pp, micro_batches)


def _dual_pairs(stage: Counts, pp: Counts, micro_batches: Counts) -> Counts:
    """Of a folded pipeline."""
    main = 2 * np.maximum(micro_batches - 2 * pp + stage + 1, 0)
    return np.asarray(main - (stage == pp - 1) * (main > 0) + (pp - stage - 1))
