"""Expert migration: placement on two levels, prediction, trigger and cost."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import pytest

from cost_models.collectives import Group, Tier
from cost_models.expert_migration import EMA_WEIGHT, Migration, greedy_placement, migrate, migrate_all, migration_s
from cost_models.load_balance import LoadSeries, contiguous, imbalance_of, loads_of_ranks, series_of_factor


class Rule(TypedDict):
    interval: int
    least_drop: float


RULE = Rule(interval=50, least_drop=0.08)  # MindSpeed's defaults


def series(*rows: list[list[float]], step: int = 50) -> LoadSeries:
    return LoadSeries(step * np.arange(len(rows)), np.array(rows))


def unmoved(loads: LoadSeries, ranks: int) -> float:
    placement = contiguous(loads.loads.shape[1], loads.experts, ranks)
    return float(imbalance_of(loads_of_ranks(loads.loads[1:], placement, ranks)).mean())


def test_greedy_gives_the_heaviest_expert_to_the_least_loaded_rank_with_a_slot() -> None:
    # 8, 7, 6, 5 | 4, 3, 2, 1 on two ranks of four slots: 8 5 4 1 and 7 6 3 2.
    placement = greedy_placement(np.array([[8.0, 7, 6, 5, 4, 3, 2, 1]]), 1, 2)
    assert placement.tolist() == [[0, 1, 1, 0, 0, 1, 1, 0]]


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 8), (4, 32), (8, 64), (2, 4)])
def test_placement_fills_every_slot_and_levels_nodes_and_ranks(nodes: int, ranks: int) -> None:
    loads = series_of_factor(1.6, 256, ranks, 0.1, 50).loads[0]
    placement = greedy_placement(loads, nodes, ranks)
    for row in placement:
        assert np.bincount(row, minlength=ranks).tolist() == [256 // ranks] * ranks
    level = loads_of_ranks(loads, placement, ranks)
    before = loads_of_ranks(loads, contiguous(8, 256, ranks), ranks)
    assert imbalance_of(level).mean() < imbalance_of(before).mean()
    inside = level.reshape(8, nodes, -1).sum(axis=-1)
    assert imbalance_of(inside).max() <= imbalance_of(before.reshape(8, nodes, -1).sum(axis=-1)).max()
    assert imbalance_of(inside).max() < 1.05


def test_a_constant_series_is_predicted_without_error_and_moves_once() -> None:
    # Ranks hold (4, 4) and (1, 1): swapping one expert of each levels them.
    constant = series(*[[[4.0, 4.0, 1.0, 1.0]]] * 4)
    assert unmoved(constant, 2) == pytest.approx(1.6)
    found = migrate(constant, nodes=1, ranks=2, **RULE)
    assert found == Migration(1.0, 1.0, 1.0, 0.0, 0.0)


def test_a_small_imbalance_is_left_alone() -> None:
    # Coefficient of variation 0.05: below the least drop of 0.08 that triggers a migration.
    slight = series(*[[[1.05, 1.05, 0.95, 0.95]]] * 3)
    found = migrate(slight, nodes=1, ranks=2, **RULE)
    assert (found.imbalance, found.moved_experts) == (pytest.approx(1.05), 0.0)
    assert migrate(slight, nodes=1, ranks=2, interval=50, least_drop=0.0).imbalance == pytest.approx(1.0)


def test_prediction_lags_behind_a_router_that_swaps_its_hot_experts() -> None:
    hot, cold = [[4.0, 4.0, 1.0, 1.0]], [[1.0, 1.0, 4.0, 4.0]]
    swapped = migrate(series(hot, cold, hot, cold), nodes=1, ranks=2, **RULE)
    # One row an interval: the old prediction keeps 0.9^50 of itself, so the last row is the prediction.
    kept = EMA_WEIGHT**50
    assert swapped.prediction_error == pytest.approx(12.0 / 10.0, abs=4 * kept)


def test_a_prediction_forgets_by_the_steps_between_two_rows() -> None:
    # One step from the first row to the second: the prediction keeps 0.9 of the first, so 0.9 of the change is missed.
    hot, cold = [4.0, 4.0, 1.0, 1.0], [1.0, 1.0, 4.0, 4.0]
    loads = LoadSeries(np.array([1000, 1001, 1003]), np.array([[hot], [cold], [cold]]))
    found = migrate(loads, nodes=1, ranks=2, **RULE)
    assert found.prediction_error == pytest.approx((12.0 + 12.0 * EMA_WEIGHT) / 20.0)


def test_rows_between_two_decisions_keep_the_placement() -> None:
    hot, other = [[4.0, 4.0, 1.0, 1.0]], [[4.0, 1.0, 4.0, 1.0]]
    found = migrate(series(hot, hot, other, other, step=10), nodes=1, ranks=2, **RULE)
    # Placed once, experts 0 and 2 together; then the router sends 8 of 10 to those.
    assert found.imbalance == pytest.approx((1.0 + 1.6 + 1.6) / 3)
    assert found.peak_imbalance == pytest.approx(1.6)


def test_a_series_of_one_row_stays_as_it_is() -> None:
    found = migrate(series([[4.0, 4.0, 1.0, 1.0]]), nodes=1, ranks=2, **RULE)
    # Contiguous 8 to 2; levelled, one expert of each rank has changed places.
    assert (found.imbalance, found.prediction_error, found.moved_experts) == (1.0, 0.0, 1.0)


def test_an_interval_runs_from_the_decision_before() -> None:
    # Rows 25 steps apart: decisions for rows 1 and 3, so that the other loads of row 2 meet the old placement.
    hot, other = [[4.0, 4.0, 1.0, 1.0]], [[4.0, 1.0, 4.0, 1.0]]
    found = migrate(series(hot, hot, other, other, other, step=25), nodes=1, ranks=2, **RULE)
    assert found.imbalance == pytest.approx((1.0 + 1.6 + 1.0 + 1.0) / 4)


@pytest.mark.parametrize("ranks", [8, 32, 64])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_migration_levels_the_family_behind_a_factor(factor: float, ranks: int) -> None:
    loads = series_of_factor(factor, 256, ranks, 0.1, 50)
    found = migrate(loads, nodes=max(1, ranks // 8), ranks=ranks, **RULE)
    assert 1.0 <= found.imbalance <= factor * (1 + 1e-9)
    assert found.prediction_error == pytest.approx(0.08, rel=0.1), "mean of |x| at a deviation of 0.1"


def test_one_expert_a_rank_can_not_be_levelled() -> None:
    loads = series_of_factor(1.5, 64, 64, 0.1, 50)
    assert migrate(loads, nodes=8, ranks=64, **RULE).imbalance == pytest.approx(1.5, rel=1e-6)


def test_cost_is_fourteen_bytes_a_parameter_over_the_slowest_tier_and_the_interval() -> None:
    tiers = (Tier("inside", 1e30, 0, 0.0, 1.0), Tier("between", 1e9, 0, 0.0, 1.0))
    ranks = Group(np.asarray(32.0), (np.asarray(8.0), np.asarray(4.0)))
    states = Group(np.asarray(4.0), (np.asarray(1.0), np.asarray(4.0)))
    alone = migration_s(1e9, ranks, states, tiers, 0.0, distributed_optimizer=False, interval=50)
    assert float(alone) == pytest.approx(14.0 * 24 / 32 / 50)
    gathered = migration_s(1e9, ranks, states, tiers, 0.0, distributed_optimizer=True, interval=50)
    assert float(gathered - alone) == pytest.approx(12.0 * 3 / 4 / 50)
    assert float(
        migration_s(0.5, ranks, states, tiers, 0.0, distributed_optimizer=False, interval=50)
    ) == pytest.approx(0.5e-9 * alone)
    assert float(migration_s(0.0, ranks, states, tiers, 1.0, distributed_optimizer=True, interval=50)) == 0.0


def test_groups_that_are_followed_together_find_what_each_finds_alone() -> None:
    dead = np.random.default_rng(3).poisson(0.5, (4, 3, 64)).astype(np.float64)  # many experts without a token
    known = [series_of_factor(1.5, 64, 16, 0.1, 50), LoadSeries(np.array([0, 10, 50, 60]), dead)]
    cases = [(each, nodes, ranks) for each in known for nodes, ranks in ((1, 4), (1, 32), (2, 16), (4, 4), (8, 64))]
    assert migrate_all(cases, **RULE) == [
        migrate(each, nodes=nodes, ranks=ranks, **RULE) for each, nodes, ranks in cases
    ]
    for each, nodes, ranks in cases:
        assert greedy_placement(each.loads[0], nodes, ranks).tolist() == in_turn(each.loads[0], nodes, ranks)


def in_turn(loads: np.ndarray, nodes: int, ranks: int) -> list[list[int]]:
    """Ranks of experts that are placed one by one, the heaviest first."""
    experts, inside = loads.shape[1], ranks // nodes
    found = []
    for row in loads.tolist():
        node_load, rank_load, held, placed = [0.0] * nodes, [0.0] * ranks, [0] * ranks, [0] * experts
        for expert in sorted(range(experts), key=lambda e: -row[e]):
            free = [rank for rank in range(ranks) if held[rank] < experts // ranks]
            node = min({rank // inside for rank in free}, key=lambda n: (node_load[n], n))
            rank = min((r for r in free if r // inside == node), key=lambda r: (rank_load[r], r))
            node_load[node], rank_load[rank] = node_load[node] + row[expert], rank_load[rank] + row[expert]
            held[rank], placed[expert] = held[rank] + 1, rank
        found.append(placed)
    return found
