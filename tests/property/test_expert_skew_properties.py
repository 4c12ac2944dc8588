"""Imbalance of expert groups: bounded, even where it must be, and growing with the group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cost_models.expert_skew import SkewFamily, family_imbalance
from tests.support.examples import examples

MANY = settings(max_examples=examples(40))
EXPERTS = st.sampled_from([8, 60, 64, 128, 160, 256, 384])
FAMILIES = st.builds(
    SkewFamily,
    experts=EXPERTS,
    value=st.one_of(st.floats(1.0, 3.0), st.floats(1.0, 64.0)),
    at_ranks=st.sampled_from([2, 8, 32, 64, 256]),
    copies=st.sampled_from([64.0, 512.0, 4096.0, 32768.0]),
    persistent=st.floats(0.0, 1.0),
)


def imbalances(family: SkewFamily, split: float, size: float, etp: float = 1.0) -> np.ndarray:
    """Of all group sizes, for sequences split over so many ranks in micro batches of this size."""
    ranks = np.array([n for n in range(1, family.experts + 1) if family.experts % n == 0], dtype=np.float64)
    copies = family.copies * 8.0 * size * etp / split
    return family_imbalance(family, ranks, size * np.maximum(1.0, ranks * etp / split), copies)


@MANY
@given(FAMILIES, st.sampled_from([1.0, 2.0, 8.0, 64.0]), st.sampled_from([1.0, 2.0, 8.0]))
def test_imbalance_grows_with_the_group_from_one_and_stays_below_its_ranks(
    family: SkewFamily, split: float, size: float
) -> None:
    found = imbalances(family, split, size)
    ranks = [n for n in range(1, family.experts + 1) if family.experts % n == 0]
    assert found[0] == 1.0
    assert (found >= 1.0).all()
    assert (found <= ranks).all()
    assert (np.diff(found) >= -1e-9 * found[1:]).all(), found


@MANY
@given(FAMILIES, st.sampled_from([1.0, 4.0]))
def test_more_sequences_and_more_layers_average_more(family: SkewFamily, split: float) -> None:
    # Extreme loads are more skewed than the lognormal that stands for them.
    assume(family.value <= 3.0 and family.at_ranks >= 32)
    assert (imbalances(family, split, 2.0) <= imbalances(family, split, 1.0) * (1 + 1e-9)).all()
    one, several = (family_imbalance(family, family.experts, 4.0, 512.0, layers) for layers in (1.0, 4.0))
    assert 1.0 <= float(several) <= float(one) * (1 + 1e-9)


@MANY
@given(FAMILIES)
def test_the_stated_group_has_the_stated_factor(family: SkewFamily) -> None:
    reference = float(family_imbalance(family, family.anchor, family.sequences, family.copies))
    assert reference == pytest.approx(min(family.value, family.anchor), rel=2e-9)


@MANY
@given(EXPERTS, st.sampled_from([1.0, 2.0, 8.0]))
def test_a_balanced_router_is_exactly_even(experts: int, split: float) -> None:
    assert (imbalances(SkewFamily(experts, 1.0, 32, 4096.0, 0.5), split, 1.0) == 1.0).all()


@MANY
@given(st.floats(1.0, 3.0), st.sampled_from([2, 8, 16]))
def test_groups_that_receive_equally_much_are_exactly_even(value: float, groups: int) -> None:
    family = SkewFamily(64, value, 32, 4096.0, 0.75, groups)
    ranks = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    found = family_imbalance(family, ranks, np.maximum(1.0, ranks / 8.0), 4096.0)
    assert (found[ranks <= groups] == 1.0).all()
    assert (np.diff(found) >= 0.0).all()
