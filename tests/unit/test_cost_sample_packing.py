"""Attention over packed documents."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models import sample_packing
from cost_models.sample_packing import attention_imbalance, longest_first, mean_keys, pack_squares

MIXED = {512: 50.0, 2048: 30.0, 8192: 15.0, 32768: 5.0}


def test_full_sequences_cost_alike_and_see_half_the_sequence() -> None:
    squares = pack_squares({8192: 1.0}, 8192, 64)
    assert squares.tolist() == [8192.0**2] * 64
    assert mean_keys(squares, 8192) == 4096.0


def test_how_many_documents_are_drawn_at_a_time_changes_no_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = pack_squares(MIXED, 8192, 64)
    monkeypatch.setattr(sample_packing, "DRAW_SHARE", 0.05)
    assert np.array_equal(at_once, pack_squares(MIXED, 8192, 64))


def test_documents_longer_than_a_sequence_are_cut() -> None:
    assert pack_squares({32768: 1.0}, 8192, 8).tolist() == [8192.0**2] * 8


def test_equal_documents_fill_a_pack() -> None:
    assert pack_squares({1024: 3.0}, 4096, 4).tolist() == [4 * 1024.0**2] * 4
    # 3 documents of 1500 in 4096 tokens: 1500 + 1500 + 1096, then the rest of the third first.
    assert pack_squares({1500: 1.0}, 4096, 2)[0] == 1500.0**2 * 2 + 1096.0**2


def test_packs_hold_every_token_once() -> None:
    squares = pack_squares(MIXED, 8192, 512)
    assert ((squares <= 8192.0**2) & (squares >= 8192.0**2 / 8192)).all()
    assert np.array_equal(squares, pack_squares(dict(reversed(MIXED.items())), 8192, 512))


def test_longest_first_gives_every_bin_as_many() -> None:
    # 9 4 | 8 5 | 7 6 level three bins of two; a fourth of a bin's slots is never passed.
    assert sorted(longest_first(np.array([4.0, 9, 8, 5, 7, 6]), 3).tolist()) == [13.0, 13.0, 13.0]
    assert sorted(longest_first(np.array([9.0, 1, 1, 1]), 2).tolist()) == [2.0, 10.0]


@pytest.mark.parametrize(
    ("groups", "ranks", "batch", "rounds"), [(64, 1, 1, 16), (8, 8, 1, 16), (8, 4, 2, 8), (1, 1, 1, 4)]
)
def test_rearranged_samples_are_never_more_uneven(groups: int, ranks: int, batch: int, rounds: int) -> None:
    squares = pack_squares(MIXED, 8192, groups * ranks * batch * rounds)
    plain, levelled = (
        attention_imbalance(
            squares, groups=groups, ranks=ranks, micro_batch_size=batch, micro_batches=rounds, rearranged=rearranged
        )
        for rearranged in (False, True)
    )
    assert 1.0 - 1e-12 <= levelled <= plain
    if groups * ranks > 1:
        assert levelled < 1.0 + 0.2 * (plain - 1.0)


def test_ranks_that_wait_in_every_micro_batch_lose_more() -> None:
    squares = pack_squares(MIXED, 8192, 1024)
    at_the_end, always = (
        attention_imbalance(squares, groups=64 // r, ranks=r, micro_batch_size=1, micro_batches=16, rearranged=False)
        for r in (1, 64)
    )
    assert always > at_the_end


def test_one_rank_has_nobody_to_wait_for() -> None:
    squares = pack_squares(MIXED, 8192, 16)
    assert attention_imbalance(squares, groups=1, ranks=1, micro_batch_size=4, micro_batches=4, rearranged=False) == 1.0
