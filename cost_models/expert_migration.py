"""Experts that move to level the load of the ranks: placement, prediction, trigger and cost.

Every `interval` steps the loads of the next steps are predicted, experts are placed anew for them, and a layer's
experts move if the predicted coefficient of variation falls enough.
Source: MindSpeed, expert migration (--enable-expert-placement): exponential moving average with weight 0.9, greedy
placement, migration of a layer where the coefficient of variation falls by at least 0.08, every 50 steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.all_to_all import flat_s
from cost_models.collectives import Group, Tier, all_gather_s
from cost_models.load_balance import (
    Floats,
    Ints,
    LoadSeries,
    Number,
    contiguous,
    imbalance_of,
    loads_of_ranks,
    variation_of,
)

INTERVAL_STEPS = 50  # --expert-placement-freq
LEAST_DROP = 0.08  # --fine-grained-expert-placement-thre
EMA_WEIGHT = 0.9  # of the old prediction, per step
WEIGHT_BYTES, STATE_BYTES = 2.0, 12.0  # of a parameter: BF16; FP32 copy and two moments


@dataclass(frozen=True, slots=True)
class Migration:
    """What migration leaves, means over time and layers unless said otherwise.

    imbalance : max / mean over ranks. node_imbalance : the same over nodes.
    peak_imbalance : the largest over time, mean over layers: it sizes memory.
    moved_experts : arriving at the busiest rank of a layer in each interval.
    prediction_error : sum |predicted - actual| / sum actual.
    """

    imbalance: float
    node_imbalance: float
    peak_imbalance: float
    moved_experts: float
    prediction_error: float


def greedy_placement(loads: Floats, nodes: int, ranks: int) -> Ints:
    """Rank of every expert [layers, experts], heaviest expert first, on two levels.

    The expert goes to the node with the least load that has a free slot, which levels what enters the nodes, and
    there to the rank with the least load that has one, which levels the ranks' work.

    Parameters
    ----------
    loads : predicted [layers, experts]. ranks : of the group, a multiple of nodes; experts divide by ranks.
    """
    layers, experts = loads.shape
    inside = ranks // nodes
    order = np.argsort(-loads, axis=1, kind="stable")
    heaviest_first = np.ascontiguousarray(np.take_along_axis(loads, order, 1).T)
    # Loads of nodes and ranks that still have a free slot, of full ones infinite; a layer's nodes follow each other.
    node_load, rank_load = np.zeros((layers, nodes)), np.zeros((layers * nodes, inside))
    node_slots, rank_slots = np.full(layers * nodes, experts // nodes), np.full(layers * ranks, experts // ranks)
    node_flat, rank_flat = node_load.ravel(), rank_load.ravel()
    placed = np.empty((experts, layers), dtype=np.int64)
    first, rank = np.arange(layers) * nodes, np.zeros(layers, dtype=np.int64)
    node = first
    for number, load in enumerate(heaviest_first):
        if nodes > 1:
            node = first + node_load.argmin(axis=1)
            _fill(node_flat, node_slots, node, load)
        if inside > 1:
            rank = rank_load.take(node, axis=0).argmin(axis=1)
            _fill(rank_flat, rank_slots, node * inside + rank, load)
        placed[number] = (node - first) * inside + rank
    placement = np.empty((layers, experts), dtype=np.int64)
    np.put_along_axis(placement, order, placed.T, 1)
    return placement


def _fill(loads: Floats, slots: Ints, place: Ints, load: Floats) -> None:
    """Put a load into a slot of each layer, in place."""
    left = slots.take(place) - 1
    slots[place] = left
    held = loads.take(place) + load
    held[left == 0] = np.inf
    loads[place] = held


def migrate(
    series: LoadSeries,
    *,
    nodes: int,
    ranks: int,
    interval: int = INTERVAL_STEPS,
    least_drop: float = LEAST_DROP,
) -> Migration:
    """Follow a load series: predict, place, move where it pays, and measure on the loads that then came.

    The first row only teaches the prediction. A series of one row is taken to stay as it is.
    """
    loads = series.loads if len(series.loads) > 1 else np.repeat(series.loads, 2, axis=0)
    steps = series.steps if len(series.steps) > 1 else series.steps[0] + np.array([0, interval])
    layers, experts = loads.shape[1:]
    keep = EMA_WEIGHT ** np.diff(steps).astype(np.float64)
    predictions, wrong, held = [loads[0]], 0.0, 0.0
    due: list[int] = []
    for row in range(1, len(loads)):
        if steps[row] >= (steps[due[-1]] + interval if due else steps[1]):
            due.append(row)
        predicted, actual = predictions[-1], loads[row]
        wrong += float(np.abs(predicted - actual).sum())
        held += float(actual.sum())
        predictions.append(keep[row - 1] * predicted + (1.0 - keep[row - 1]) * actual)
    # What is predicted does not depend on who holds the experts: all placements are found at once.
    wanted = greedy_placement(np.concatenate([predictions[row - 1] for row in due]), nodes, ranks)
    new = dict(zip(due, wanted.reshape(len(due), layers, experts), strict=True))
    placement = contiguous(layers, experts, ranks)
    moved, seen, levels = [], [], []
    for row in range(1, len(loads)):
        if row in new:
            placement, arriving = _moved(predictions[row - 1], placement, new[row], ranks, least_drop)
            moved.append(float(arriving.mean()))
        on_ranks = loads_of_ranks(loads[row], placement, ranks)
        seen.append(imbalance_of(on_ranks))
        levels.append(imbalance_of(on_ranks.reshape(layers, nodes, -1).sum(axis=-1)))
    return Migration(
        imbalance=float(np.mean(seen)),
        node_imbalance=float(np.mean(levels)),
        peak_imbalance=float(np.max(seen, axis=0).mean()),
        moved_experts=float(np.mean(moved[1:] if len(moved) > 1 else moved)),
        prediction_error=wrong / max(held, 1e-300),
    )


def _moved(predicted: Floats, placement: Ints, new: Ints, ranks: int, least_drop: float) -> tuple[Ints, Floats]:
    """The next placement, and the experts that arrive at the busiest rank of each layer [layers]."""
    before, after = (variation_of(loads_of_ranks(predicted, p, ranks)) for p in (placement, new))
    better = (before - after >= least_drop)[:, None]
    chosen = np.where(better, new, placement)
    arrived = loads_of_ranks((chosen != placement).astype(np.float64), chosen, ranks)
    return chosen, np.asarray(arrived.max(axis=-1))


def migration_s(
    moved_params: Number,
    ep_group: Group,
    state_group: Group,
    tiers: tuple[Tier, ...],
    fixed_s: Number,
    *,
    distributed_optimizer: bool,
    interval: int = INTERVAL_STEPS,
) -> Floats:
    """Seconds a step to move experts, spread over the steps of an interval.

    Parameters
    ----------
    moved_params : parameters that arrive at the busiest rank in each interval.
    state_group : ranks that share the optimizer states of an expert: under a distributed optimizer they are gathered
        there first.

    Notes
    -----
    An All-to-All of 14 B a parameter: 2 B of weights, 12 B of FP32 copy and moments.
    """
    moved = np.asarray(moved_params, dtype=np.float64)
    exchanged = flat_s((WEIGHT_BYTES + STATE_BYTES) * moved, 1.0, ep_group, tiers, fixed_s)
    gathered = all_gather_s(STATE_BYTES * moved, state_group, tiers, fixed_s) if distributed_optimizer else 0.0
    return np.asarray(np.where(moved > 0.0, (exchanged + gathered) / interval, 0.0))
