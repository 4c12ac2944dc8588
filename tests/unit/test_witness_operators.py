"""Operators that the host is predicted to issue, beside those that frameworks were seen to issue."""

from __future__ import annotations

import numpy as np
import pytest

from tests.witness.operators import DERIVED, HELD, counted, errors

pytestmark = pytest.mark.unit
# As docs/explanation/host_and_swap.md says, of plans that the counts were not derived from and of those that they were.
MOST, MEAN, MEAN_OF_DERIVED = 0.18, 0.10, 0.12


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[float, float]]:
    return {name: errors(name, row) for name, row in counted().items()}


def test_plans_that_the_counts_have_not_seen_are_near_what_frameworks_issue(
    found: dict[str, tuple[float, float]],
) -> None:
    sizes = np.abs([found[name] for name in HELD])
    assert sizes.max() <= MOST
    assert sizes.mean() <= MEAN


def test_plans_that_the_counts_were_made_with_are_near_them(found: dict[str, tuple[float, float]]) -> None:
    assert np.abs([found[name] for name in DERIVED]).mean() <= MEAN_OF_DERIVED


def test_every_plan_is_counted_and_none_is_both_derived_from_and_held(found: dict[str, tuple[float, float]]) -> None:
    assert found.keys() == {*DERIVED, *HELD}
    assert not {*DERIVED} & {*HELD}


def test_a_ring_is_predicted_with_nearly_all_of_its_operators(found: dict[str, tuple[float, float]]) -> None:
    assert np.abs([found[name] for name in ("llm_ring", "core_ring")]).max() <= 0.10


def test_every_release_that_patches_megatron_for_npus_is_counted() -> None:
    assert {row.release for row in counted().values()} == {"mindspeed-llm-master", "megatron-mindspeed-master"}
