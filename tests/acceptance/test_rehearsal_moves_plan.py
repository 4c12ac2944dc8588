"""One rehearsal on a cluster whose numbers nobody knows brings the full plan's prediction near the truth."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.hidden_profiles import MOST, trials

pytestmark = pytest.mark.acceptance


def test_one_rehearsal_of_a_dense_plan():
    """Ten hidden profiles, drawn once; `python -m tests.benchmarks.rehearsals` prints any number of any plan.

    Errors are of the hidden step time: a noisy run of the full plan is off by 3.5 % itself. Intervals are held against
    that run.
    """
    found = trials("dense A2", "2nodes", 10, seed=20261123)
    before, after = (np.abs([getattr(each, name) for each in found]) for name in ("before", "after"))
    assert 0.2 < before.max() <= MOST
    assert np.sum(before <= 0.08) < np.sum(after <= 0.08)
    assert np.sum(after <= 0.08) >= 9
    assert np.mean(after) < 0.5 * np.mean(before)
    assert 0.72 <= np.mean([each.inside for each in found]) <= 0.88
