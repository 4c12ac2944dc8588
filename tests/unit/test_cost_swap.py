"""The host link beside computation."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.swap import beyond_own_layer_s, exposed_swap_s, transfer_s

LINK = 24e9  # Atlas 800T A2, one direction


def test_a_swap_is_free_while_it_fits_its_window() -> None:
    # MindSpeed swap-attention hides what is shorter than the computation beside it; here one way beside one pass.
    window = 0.01
    fits = LINK * window
    assert float(exposed_swap_s(fits, LINK, window)) == 0.0
    assert float(exposed_swap_s(fits * 1.5, LINK, window)) == pytest.approx(0.005)


def test_a_latency_of_microseconds_is_left_out_of_milliseconds() -> None:
    # One BF16 activation of 4096 tokens and 4096 hidden dimensions, 32 MiB, takes 1.4 ms.
    assert float(transfer_s(2 * 4096 * 4096, LINK)) == pytest.approx(1.4e-3, rel=0.01)


def test_without_a_window_all_of_it_shows() -> None:
    assert float(exposed_swap_s(LINK, LINK, 0.0)) == float(transfer_s(LINK, LINK)) == 1.0


def test_tensors_that_share_the_link_add_up() -> None:
    window, tensor = 0.01, 0.6 * LINK * 0.01
    assert float(exposed_swap_s(tensor, LINK, window)) == 0.0
    assert float(exposed_swap_s(2 * tensor, LINK, window)) == pytest.approx(0.2 * window)


def test_one_value_per_candidate() -> None:
    seconds = exposed_swap_s(np.array([0.0, LINK, 2 * LINK]), LINK, 1.0)
    assert seconds.tolist() == [0.0, 0.0, 1.0]


def test_a_swap_that_its_own_layer_must_hide_shows_what_that_part_does_not() -> None:
    """With what the passes of the chunk do not hide either, it is the transfer less the part's work."""
    window, whole = 0.002, 0.005
    for transfer in (0.001, 0.003, 0.008):
        shown = float(beyond_own_layer_s(transfer * LINK, LINK, window, whole))
        beyond = float(exposed_swap_s(transfer * LINK, LINK, whole))
        assert shown + beyond == pytest.approx(max(0.0, transfer - window))
