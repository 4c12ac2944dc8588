"""What a layer's memory choices can do at most: held to every legal set of choices."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from autodeploy.search.choices.layer_choices import Choices, prices
from autodeploy.search.choices.memory_options import connected, maximal_cliques, rivals


def random_choices(seed: int) -> tuple[Choices, list[tuple[float, float]]]:
    """Choices of one layer class, and (bytes, seconds) of every set of them that a layer can use."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 8))
    rival = np.triu(rng.random((count, count)) < rng.uniform(0.1, 0.6), 1)
    if count > 2:
        rival[0, 1:-1] = True  # one that replaces nearly all others, as recomputing the whole layer does
    rival |= rival.T
    saved, extra = rng.uniform(0.0, 3.0, count), rng.choice([0.0, *rng.uniform(0.0, 2.0, 3)], count)
    sets = [
        some
        for size in range(count + 1)
        for some in combinations(range(count), size)
        if not any(rival[a, b] for a, b in combinations(some, 2))
    ]
    points = [(float(saved[list(some)].sum()), float(extra[list(some)].sum())) for some in sets]
    most = np.array([max(bytes_ for bytes_, _ in points)])
    groups = rivals(count, lambda a, b: bool(rival[a, b]))
    return Choices(saved[:, None], extra[:, None], groups, most), points


@pytest.mark.parametrize("seed", range(200))
def test_no_legal_set_gains_more_and_one_gains_as_much(seed: int) -> None:
    choices, points = random_choices(seed)
    tried = np.linspace(0.0, 5.0, 41)
    truth = np.max([tried * saved - extra for saved, extra in points], axis=0)
    np.testing.assert_allclose(choices.gained_s(tried[None])[0], truth, atol=1e-12)


@pytest.mark.parametrize("seed", range(200))
def test_the_dearest_bytes_are_found_at_the_prices(seed: int) -> None:
    """Of all prices, those of the corners say most about what freeing some bytes costs."""
    choices, points = random_choices(seed)
    corners = prices([choices])
    assert (np.diff(corners) > 0.0).all()
    fine = np.linspace(0.0, 20.0, 2001)
    for needed in np.linspace(0.0, max(saved for saved, _ in points), 7):

        def least_s(tried: np.ndarray, needed: float = float(needed)) -> float:
            return float(np.max(tried * needed - choices.gained_s(tried[None])[0], initial=0.0))

        # Prices within 2 % of each other count as one.
        assert least_s(corners) >= least_s(fine) * (1.0 - 0.03) - 1e-9


def test_groups_and_cliques_of_a_graph() -> None:
    graph = {0: frozenset({1, 2}), 1: frozenset({0, 2}), 2: frozenset({0, 1, 3}), 3: frozenset({2}), 4: frozenset()}
    numbers = frozenset(graph)
    assert connected(numbers, graph) == [frozenset({0, 1, 2, 3}), frozenset({4})]
    assert connected(numbers - {2}, graph) == [frozenset({0, 1}), frozenset({3}), frozenset({4})]
    assert maximal_cliques(numbers, graph) == [(0, 1, 2), (2, 3), (4,)]
