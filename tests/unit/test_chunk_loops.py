"""The compiled loops over chunks against the same in numpy."""

from __future__ import annotations

import numpy as np

from autodeploy.evaluation.stages.chunk_loops import add_options
from autodeploy.evaluation.stages.inner_problem import fill_chunks


def test_options_are_added_to_the_chunks_that_are_filled() -> None:
    """One rule says which chunks have an option: `fill_chunks`; the loop adds what it costs there."""
    draws = np.random.default_rng(20261122)
    layout = draws.integers(0, 4, (50, 3, 2, 2))
    layer_class, amount = np.array([0, 1, 1]), np.array([1.0, 0.25, -3.0])
    most = layout.sum(axis=2)[..., layer_class]
    applied = draws.integers(-1, most + 2)  # also fewer than none and more than all
    total = np.ones((50, 3, 2))
    add_options(applied, layout, layer_class, amount, total)
    expected = np.ones((50, 3, 2))
    for option, number in enumerate(layer_class):
        expected += amount[option] * fill_chunks(applied[..., option], layout[..., number])
    np.testing.assert_array_equal(total, expected)
