"""The family of loads behind a factor: against published extremes, and against drawing it."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.expert_skew import SkewFamily, deviations, family_imbalance, spread_of
from cost_models.load_balance import contiguous, imbalance_of, loads_of_ranks, series_of_factor

PLENTY = 1e15  # tokens without noise
# Independent experts whose skew lasts, 256 of them, 1.3 over 32 ranks: max / mean over as many ranks.
EXTREME = {8: 1.10, 16: 1.19, 64: 1.52, 128: 1.96, 256: 2.73}


def family(persistent: float, value: float = 1.3, experts: int = 256, copies: float = 4096.0) -> SkewFamily:
    return SkewFamily(experts, value, 32, copies, persistent)


@pytest.mark.parametrize(("ranks", "expected"), EXTREME.items())
def test_with_all_variance_persistent_the_family_is_that_of_independent_experts(ranks: int, expected: float) -> None:
    series = series_of_factor(1.3, 256, 32, 0.1, 50)
    drawn = imbalance_of(loads_of_ranks(series.loads[1:], contiguous(8, 256, ranks), ranks)).mean()
    assert drawn == pytest.approx(expected, abs=0.006)
    # 32 draws are off by a few percent themselves: see the next test for many.
    found = float(family_imbalance(family(1.0, copies=PLENTY), ranks, 1.0, PLENTY))
    assert found == pytest.approx(expected, rel=0.055)


def test_documents_average_over_the_group() -> None:
    # Bias-balanced, TP4, micro batch 1: 64 and 2 sequences where the factor is of 4.
    wide, narrow = (float(family_imbalance(family(0.25), ep, ep / 4.0, 8192.0)) for ep in (256, 8))
    assert wide == pytest.approx(1.7, abs=0.05)
    assert narrow == pytest.approx(1.13, abs=0.02)


@pytest.mark.parametrize("value", [1.1, 1.3, 2.0])
@pytest.mark.parametrize("persistent", [0.0, 0.25, 1.0])
@pytest.mark.parametrize(
    ("ranks", "sequences", "copies"), [(2, 1, 512.0), (8, 1, 64.0), (8, 2, 4096.0), (32, 8, 512.0), (128, 32, 4096.0)]
)
def test_the_closed_form_is_what_drawing_gives(
    value: float, persistent: float, ranks: int, sequences: int, copies: float
) -> None:
    known = family(persistent, value, experts=128)
    drawn, standard_error = draws(known, ranks, sequences, copies)
    found = float(family_imbalance(known, ranks, sequences, copies))
    assert found - 1.0 == pytest.approx(drawn - 1.0, rel=0.1, abs=4.0 * standard_error)


def draws(known: SkewFamily, ranks: int, sequences: int, copies: float, number: int = 600) -> tuple[float, float]:
    """Mean of max / mean over the ranks, and its standard error: loads of documents drawn one by one, then tokens."""
    rng, spread, experts = np.random.default_rng(ranks), spread_of(known), known.experts
    lasting = np.exp(np.sqrt(spread.persistent) * rng.standard_normal((number, experts)) - spread.persistent / 2.0)
    sigma = np.sqrt(np.log1p(spread.of_a_sequence))
    documents = np.exp(sigma * rng.standard_normal((number, sequences, experts)) - sigma**2 / 2.0).mean(axis=1)
    mean = (lasting * documents).reshape(number, ranks, -1).mean(axis=-1)
    received = rng.poisson(copies * mean) if spread.noise else mean
    factors = received.max(axis=-1) / received.mean(axis=-1)
    return float(factors.mean()), float(factors.std() / np.sqrt(number))


def test_what_lasts_stays_and_what_passes_falls_with_the_documents() -> None:
    known = family(0.5)
    few, same, many = (deviations(known, 32, n, PLENTY) for n in (1.0, 4.0, 64.0))
    assert few[0] == same[0] == many[0] == pytest.approx(same[1], rel=1e-6)
    assert few[1] > same[1] > many[1]
    assert deviations(family(0.5, 1.0), 32, 4.0, PLENTY) == (0.0, 0.0)


def test_a_factor_below_what_tokens_alone_make_takes_off_their_noise() -> None:
    spread = spread_of(family(0.5, 1.02))
    assert (spread.persistent, spread.of_a_sequence) == (0.0, 0.0)
    assert 0.0 < spread.noise < 1.0


def test_a_factor_is_of_as_many_ranks_as_there_are_experts() -> None:
    # Eight experts: "at EP 32" can only mean one expert a rank.
    few = family(1.0, experts=8)
    assert float(family_imbalance(few, 8, few.sequences, few.copies)) == pytest.approx(1.3)
