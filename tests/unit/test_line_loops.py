"""The compiled loops over lines that stages obey against layers put down one after the other."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.search.bounds.stage_bound import cheapest_chunks, in_order, in_order_of_chunks, least_for, most_under

STAGES, ROWS, CHUNKS, CLASSES = 3, 4, 2, 3


def weights(draws: np.random.Generator) -> np.ndarray:
    """What a layer adds in each chunk [n, stages, rows, chunks, classes], in eighths: sums of them are exact."""
    return draws.integers(1, 40, (5, STAGES, ROWS, CHUNKS, CLASSES)) / 8.0


def totals(constant: float, weight: np.ndarray, counts: np.ndarray, least: int, most: int) -> list[float]:
    """What a line is with 0, 1, ... layers of the cheapest classes first, in the cheapest chunks first, of which the
    least layers of each are paid.
    """
    cheapest = weight.min(axis=0)
    layers = sorted(cost for cost, count in zip(cheapest, counts, strict=True) for _ in range(int(count)))
    dearer = sorted((weight - cheapest)[:, counts > 0].min(axis=1).tolist())
    chunks = [0.0] * (least * CHUNKS) + [more for more in dearer for _ in range(most - least)]
    return np.cumsum([constant, *(cost + more for cost, more in zip(layers, chunks, strict=False))]).tolist()


@pytest.mark.parametrize("counts", [(4, 0, 2), (3, 2, 1), (0, 0, 5)])
def test_stages_hold_the_cheapest_layers_first(counts: tuple[int, ...]) -> None:
    draws = np.random.default_rng(20261126)
    weight, of_class = weights(draws), np.array(counts, dtype=np.float64)
    constant, (layer, everywhere) = draws.integers(0, 9, weight.shape[:3]) / 2.0, cheapest_chunks(weight)
    assert layer.tolist() == weight.min(axis=3).tolist()
    assert everywhere.tolist() == (weight - layer[..., None, :]).min(axis=4).sum(axis=3).tolist()
    least, most, every = 1, 3, sum(counts)
    ways = {
        False: (*in_order(layer, of_class), 0, 100),
        True: (*in_order_of_chunks(*in_order(layer, of_class), weight, layer, of_class, least, most), least, most),
    }
    for by_chunk, (cost, offered, fewest, largest) in ways.items():
        held = np.full(weight.shape[:2], float(every - 1))
        found = least_for(constant, cost, offered, every, held)
        assert np.isinf(found[..., every]).all()
        limit = draws.integers(4, 60, weight.shape[:2]) / 4.0
        many = most_under(constant, cost, offered, limit)
        for each, stage in np.ndindex(*weight.shape[:2]):
            lines = [
                totals(constant[each, stage, row], weight[each, stage, row], of_class, fewest, largest)
                if by_chunk
                else totals(constant[each, stage, row], weight[each, stage, row, :, :], of_class, every, every)
                for row in range(ROWS)
            ]
            assert found[each, stage, :every].tolist() == np.max(lines, axis=0)[:every].tolist()
            fit = min(sum(value <= limit[each, stage] for value in line) - 1 for line in lines)
            assert many[each, stage] == (fit if fit >= 0 else -1e9)


def test_a_limit_may_hold_for_all_stages_of_a_candidate() -> None:
    draws = np.random.default_rng(20261126)
    layer, _ = cheapest_chunks(weights(draws))
    cost, offered = in_order(layer, np.array([4.0, 0.0, 2.0]))
    constant, limit = np.zeros(layer.shape[:3]), draws.integers(4, 60, (5, 1)) / 4.0
    same = most_under(constant, cost, offered, np.repeat(limit, STAGES, axis=1))
    assert most_under(constant, cost, offered, limit).tolist() == same.tolist()
