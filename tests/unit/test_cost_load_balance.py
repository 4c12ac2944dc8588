"""Imbalance of an expert parallel group."""

from __future__ import annotations

import numpy as np

from cost_models.load_balance import rank_imbalance


def test_one_rank_is_balanced_and_no_rank_gets_more_than_everything() -> None:
    assert rank_imbalance(3.0, np.array([1, 2, 4, 64])).tolist() == [1.0, 2.0, 3.0, 3.0]


def test_balanced_routing_stays_balanced() -> None:
    assert rank_imbalance(1.0, np.array([1, 8, 256])).tolist() == [1.0, 1.0, 1.0]
