"""Operators that the host is predicted to issue, beside those that frameworks were seen to issue."""

from __future__ import annotations

import numpy as np
import pytest

from tests.witness.operators import KNOWN, NEW, RING, counted, errors

pytestmark = pytest.mark.unit
# Of plans that the counts were not derived from, as docs/explanation/host_and_swap.md says.
MOST, MEAN, OF_RING = 0.26, 0.15, 0.50


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[float, float]]:
    return {name: errors(name, row) for name, row in counted().items()}


def test_plans_that_the_counts_have_not_seen_are_near_what_frameworks_issue(
    found: dict[str, tuple[float, float]],
) -> None:
    sizes = np.abs([found[name] for name in NEW])
    assert sizes.max() <= MOST
    assert sizes.mean() <= MEAN


def test_plans_that_the_counts_were_made_with_are_nearer(found: dict[str, tuple[float, float]]) -> None:
    assert np.abs([found[name] for name in KNOWN]).mean() <= 0.10


def test_a_ring_is_predicted_with_half_of_its_operators_at_least(found: dict[str, tuple[float, float]]) -> None:
    assert {name for name in found} == {*KNOWN, *NEW, *RING}
    assert np.abs([found[name] for name in RING]).max() <= OF_RING


def test_every_release_that_patches_megatron_for_npus_is_counted() -> None:
    assert {row.release for row in counted().values()} == {"mindspeed-llm-master", "megatron-mindspeed-master"}
