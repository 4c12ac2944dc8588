"""The compiled loops over chunks against one layer after the other."""

from __future__ import annotations

import numpy as np
import pytest

from autodeploy.costs.stages.chunk_loops import add_options, covering_sends, layer_totals, peaks
from autodeploy.costs.stages.inner_problem import fill_chunks


def first_layers(number: int, sizes: list[int]) -> list[int]:
    """How many layers of each chunk are among the first `number` of a stage whose chunks have so many."""
    chunk_of = [chunk for chunk, size in enumerate(sizes) for _ in range(size)]
    taken = chunk_of[: max(number, 0)]
    return [taken.count(chunk) for chunk in range(len(sizes))]


def test_the_first_layers_of_a_stage_lie_in_its_first_chunks() -> None:
    assert first_layers(4, [3, 0, 2]) == [3, 0, 1]
    assert first_layers(-1, [3, 2]) == [0, 0]
    assert first_layers(9, [3, 2]) == [3, 2]


@pytest.mark.parametrize("sizes", [[3, 2], [0, 4], [2, 0, 1], [5]])
def test_chunks_are_filled_in_order(sizes: list[int]) -> None:
    for number in range(-1, sum(sizes) + 2):
        found = fill_chunks(np.array([[number]]), np.array([[sizes]]))
        assert found[0, 0].tolist() == first_layers(number, sizes)


def test_options_cost_what_they_do_in_the_chunks_that_have_them() -> None:
    draws = np.random.default_rng(20261122)
    layout = draws.integers(0, 4, (50, 3, 2, 2))
    layer_class, amount = np.array([0, 1, 1]), np.array([1.0, 0.25, -3.0])
    most = layout.sum(axis=2)[..., layer_class]
    applied = draws.integers(-1, most + 2)  # also fewer than none and more than all
    total = np.ones((50, 3, 2))
    add_options(applied, layout, layer_class, amount[None], total)
    for row, stage in np.ndindex(50, 3):
        expected = [1.0, 1.0]
        for option, number in enumerate(layer_class):
            sizes = layout[row, stage, :, number].tolist()
            for chunk, layers in enumerate(first_layers(int(applied[row, stage, option]), sizes)):
                expected[chunk] += layers * amount[option]
        assert total[row, stage].tolist() == expected


def test_chunks_sum_over_their_layers_and_stages_peak_at_their_worst_moment() -> None:
    draws = np.random.default_rng(20261126)
    layout, of_layer = draws.integers(0, 4, (20, 3, 2, 3)), np.array([0.25, 2.0, 8.5])
    held = layer_totals(layout, of_layer[None])
    assert held.tolist() == np.einsum("npvc,c->npv", layout, of_layer).tolist()
    moments = np.array([[[4.0, 0.0], [2.0, 2.0]], [[3.0, 1.0], [0.0, 4.0]], [[1.0, 1.0], [1.0, 1.0]]])
    for row, stage in np.ndindex(20, 3):
        first, second = held[row, stage]
        assert peaks(held, moments)[row, stage] == max(first * a + second * b for a, b in moments[stage])


def test_sends_run_beside_the_first_layer_of_an_equally_long_backward() -> None:
    # One stage of three chunks: two layers of the second class; one of each; one of the first.
    layout = np.array([[[[0, 2], [1, 1], [1, 0]]]])
    covering = covering_sends(layout, np.array([[3.0, 5.0]]))[0, 0]
    assert covering.tolist() == [[5.0, 3.0, 0.0], [5.0, 3.0, 0.0], [0.0, 0.0, 3.0]]
    empty = covering_sends(np.zeros((1, 1, 2, 2), dtype=np.int64), np.array([[3.0, 5.0]]))
    assert not empty.any()
