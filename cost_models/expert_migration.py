"""Experts that move to level the load of the ranks: placement, prediction, trigger and cost.

Every `interval` steps the loads of the next steps are predicted, experts are placed anew for them, and a layer's
experts move if the predicted coefficient of variation falls enough.
Source: MindSpeed, expert migration (--enable-expert-placement): exponential moving average with weight 0.9, greedy
placement, migration of a layer where the coefficient of variation falls by at least 0.08, every 50 steps.

Parameters
----------
nodes : instances of the outermost tier over which the ranks of an expert parallel group lie evenly [nodes].
series : a `LoadSeries`.
cases : loads with the ranks and the nodes of the group that shares its experts out, one for each group.
ep_group : `Group` that exchanges experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.all_to_all import flat_s
from cost_models.collectives import Group, Tier, all_gather_s
from cost_models.compiled import compiled
from cost_models.load_balance import LEAST, LoadSeries, contiguous, imbalance_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cost_models.arrays import Floats, Ints, Number

EMA_WEIGHT = 0.9  # of the old prediction, per step
WEIGHT_BYTES, STATE_BYTES = 2.0, 12.0  # of a parameter: BF16; FP32 copy and two moments


@dataclass(frozen=True, slots=True)
class Migration:
    """Imbalance that migration leaves, means over time and layers unless said otherwise.

    imbalance : max / mean over ranks [ratio]. node_imbalance : the same over nodes [ratio].
    peak_imbalance : the largest over time, mean over layers: it sizes memory [ratio].
    moved_experts : arriving at the busiest rank of a layer in each interval [experts].
    prediction_error : sum |predicted - actual| / sum actual [fraction].
    """

    imbalance: float
    node_imbalance: float
    peak_imbalance: float
    moved_experts: float
    prediction_error: float


def greedy_placement(loads: Floats, nodes: int, ranks: int, order: Ints | None = None) -> Ints:
    """Expert placement: the rank of every expert [layers, experts], heaviest expert first, on two levels.

    The expert goes to the node with the least load that has a free slot, which levels what enters the nodes, and
    there to the rank with the least load that has one, which levels the ranks' work.

    Parameters
    ----------
    loads : predicted [layers, experts]. ranks : of the group, a multiple of nodes; experts divide by ranks.
    order : `heaviest_first` of the loads, where it is known.
    """
    return _filled(loads, heaviest_first(loads) if order is None else order, nodes, ranks // nodes)


def heaviest_first(loads: Floats) -> Ints:
    """Experts of every layer by load [..., experts], of equals the first first."""
    return np.argsort(-loads, axis=-1, kind="stable")


@compiled
def _filled(loads: Floats, order: Ints, nodes: int, inside: int) -> Ints:
    """Node of x inside ranks, each with equally many slots, that takes each load [n, items], in the given order.

    It is the node with the least load among those with a free slot, and there the rank; of equals the first.
    """
    n, items = loads.shape
    ranks = nodes * inside
    taken = np.empty((n, items), dtype=np.int64)
    loads_of_nodes, slots, held_of, slots_of = np.empty(nodes), np.empty(nodes), np.empty(ranks), np.empty(ranks)
    for row in range(n):
        loads_of_nodes[:], slots[:], held_of[:], slots_of[:] = 0.0, items // nodes, 0.0, items // ranks
        for item in order[row]:
            node = np.argmin(loads_of_nodes)
            rank = node * inside + np.argmin(held_of[node * inside : (node + 1) * inside])
            taken[row, item] = rank
            slots[node] -= 1
            slots_of[rank] -= 1
            # Who has no slot left is as heavy as can be.
            loads_of_nodes[node] = loads_of_nodes[node] + loads[row, item] if slots[node] > 0 else np.inf
            held_of[rank] = held_of[rank] + loads[row, item] if slots_of[rank] > 0 else np.inf
    return taken


def migrate(series: LoadSeries, *, nodes: int, ranks: int, interval: int, least_drop: float) -> Migration:
    """Follow a load series: predict, place, move where it pays, and measure on the loads that then came.

    interval : steps between placements [steps]. least_drop : of the coefficient of variation, for which a layer's
        experts move.

    The first row only teaches the prediction. A series of one row is taken to stay as it is.
    """
    return migrate_all([(series, nodes, ranks)], interval=interval, least_drop=least_drop)[0]


def migrate_all(cases: Sequence[tuple[LoadSeries, int, int]], *, interval: int, least_drop: float) -> list[Migration]:
    """`migrate` for several (series, nodes, ranks) with equally many experts."""
    predictions: dict[int, _Predicted] = {}
    wanted: dict[tuple[int, int, int], Ints] = {}
    migrations = []
    for series, nodes, ranks in cases:
        # What is predicted does not depend on who holds the experts, nor on what passes: series may share both.
        seen = id(_seen(series))
        if seen not in predictions:
            predictions[seen] = _predicted(series, interval)
        if (seen, nodes, ranks) not in wanted:
            wanted[seen, nodes, ranks] = _wanted(predictions[seen], nodes, ranks)
        migrations.append(_followed(predictions[seen], series, wanted[seen, nodes, ranks], nodes, ranks, least_drop))
    return migrations


@dataclass(frozen=True, slots=True)
class _Predicted:
    """Rows at which a placement is due, the loads expected then [rows due, layers, experts], the error.

    order : experts by the expected loads, the heaviest first.
    """

    expected: Floats
    order: Ints
    due: list[int]
    error: float


def _seen(series: LoadSeries) -> Floats:
    """Loads that a prediction learns from."""
    return series.loads if series.foreseen is None or len(series.loads) < 2 else series.foreseen


def _predicted(series: LoadSeries, interval: int) -> _Predicted:
    """A series after its first row, which only teaches."""
    seen = _seen(series) if len(series.loads) > 1 else np.repeat(series.loads, 2, axis=0)
    steps = series.steps if len(series.steps) > 1 else series.steps[0] + np.array([0, interval])
    keep = EMA_WEIGHT ** np.diff(steps).astype(np.float64)
    predictions = [seen[0]]
    due: list[int] = []
    for row in range(1, len(seen)):
        if steps[row] >= (steps[due[-1] + 1] + interval if due else steps[1]):
            due.append(row - 1)
        predictions.append(keep[row - 1] * predictions[-1] + (1.0 - keep[row - 1]) * seen[row])
    expected = np.stack(predictions[:-1])
    error = float(np.abs(expected - seen[1:]).sum()) / max(float(seen[1:].sum()), LEAST)
    wanted = expected[due]
    return _Predicted(wanted, heaviest_first(wanted), due, error)


def _wanted(predicted: _Predicted, nodes: int, ranks: int) -> Ints:
    """The placement for each row due [rows due, layers, experts]: all are found at once."""
    experts = predicted.expected.shape[-1]
    rows = predicted.expected.reshape(-1, experts), predicted.order.reshape(-1, experts)
    return greedy_placement(rows[0], nodes, ranks, rows[1]).reshape(predicted.expected.shape)


def _followed(
    predicted: _Predicted, series: LoadSeries, wanted: Ints, nodes: int, ranks: int, least_drop: float
) -> Migration:
    """The loads that came, with the experts where migration has them."""
    loads = series.loads[1:] if len(series.loads) > 1 else series.loads
    _, layers, experts = loads.shape
    start = contiguous(layers, experts, ranks)
    on_ranks, arriving = _moved(
        loads, predicted.expected, np.array(predicted.due, dtype=np.int64), start, wanted, ranks, least_drop
    )
    seen = imbalance_of(on_ranks)
    levels = imbalance_of(on_ranks.reshape(*seen.shape, nodes, -1).sum(axis=-1))
    return Migration(
        imbalance=float(np.mean(seen)),
        node_imbalance=float(np.mean(levels)),
        peak_imbalance=float(np.max(seen, axis=0).mean()),
        moved_experts=float(np.mean(arriving[1:] if len(arriving) > 1 else arriving)),
        prediction_error=predicted.error,
    )


@compiled
def _moved(
    loads: Floats, expected: Floats, due: Ints, start: Ints, wanted: Ints, ranks: int, least_drop: float
) -> tuple[Floats, Floats]:
    """Loads of the ranks [rows, layers, ranks], and experts that arrive at the busiest at each row due [due, layers].

    loads : [rows, layers, experts]. start : the placement before the first row [layers, experts].
    expected, wanted : at the rows due, the loads expected and the placement for them [due, layers, experts].
    """
    rows, layers, experts = loads.shape
    on_ranks, arriving = np.zeros((rows, layers, ranks)), np.zeros((len(due), layers))
    before, after, arrived, placement = np.zeros(ranks), np.zeros(ranks), np.zeros(ranks), np.zeros(experts, np.int64)
    for layer in range(layers):
        for expert in range(experts):
            placement[expert] = start[layer, expert]
        turn = 0
        for row in range(rows):
            if turn < len(due) and due[turn] == row:
                for rank in range(ranks):
                    before[rank] = after[rank] = arrived[rank] = 0.0
                for expert in range(experts):
                    old, new = placement[expert], wanted[turn, layer, expert]
                    before[old] += expected[turn, layer, expert]
                    after[new] += expected[turn, layer, expert]
                    arrived[new] += new != old
                if variation_of(before) - variation_of(after) >= least_drop:
                    for expert in range(experts):
                        placement[expert] = wanted[turn, layer, expert]
                    for rank in range(ranks):
                        arriving[turn, layer] = max(arriving[turn, layer], arrived[rank])
                turn += 1
            for expert in range(experts):
                on_ranks[row, layer, placement[expert]] += loads[row, layer, expert]
    return on_ranks, arriving


@compiled
def variation_of(rank_loads: Floats) -> float:
    """Coefficient of variation of loads [ranks]: standard deviation / mean (ratio).

    What MindSpeed's expert migration compares with its threshold (--fine-grained-expert-placement-thre).
    """
    total, squares = 0.0, 0.0
    for load in rank_loads:
        total += load
    mean = total / len(rank_loads)
    for load in rank_loads:
        squares += (load - mean) ** 2
    return math.sqrt(squares / len(rank_loads)) / max(mean, LEAST)


def migration_s(
    moved_params: Number,
    ep_group: Group,
    state_group: Group,
    tiers: tuple[Tier, ...],
    fixed_s: Number,
    *,
    distributed_optimizer: bool,
    interval: int,
) -> Floats:
    """Seconds a step of expert migration, spread over the steps of an interval.

    Parameters
    ----------
    moved_params : parameters that arrive at the busiest rank in each interval [parameters].
    state_group : ranks that share the optimizer states of an expert: under a distributed optimizer they are gathered
        there first.
    interval : steps from one placement to the next [steps].

    Notes
    -----
    (all-to-all of 14 B a parameter + all-gather of 12 B a parameter) / interval: 2 B of BF16 weights, 12 B of FP32
    copy and both moments of Adam. The busiest rank receives `moved_params`, and the others no more.

    References
    ----------
    MindSpeed, expert migration, every --expert-placement-freq steps. Bytes: mixed-precision Adam, `hbm.state_bytes`.
    """
    moved = np.asarray(moved_params, dtype=np.float64)
    exchanged = flat_s((WEIGHT_BYTES + STATE_BYTES) * moved, 1.0, ep_group, tiers, fixed_s)
    gathered = all_gather_s(STATE_BYTES * moved, state_group, tiers, fixed_s) if distributed_optimizer else 0.0
    return np.asarray(np.where(moved > 0.0, (exchanged + gathered) / interval, 0.0))
