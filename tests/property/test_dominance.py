"""The best plan is no slower than the estimate of what somebody ran: under the same features, and with all at auto.

Every 48th record here, under auto every 144th, and of models with experts every twelfth; `make soak` takes all of them.
"""

from __future__ import annotations

import pytest

from autodeploy.calibration.shipped.tables import shipped_records
from tests.support.dominance import dominance, dominance_under_auto

EVERY = 48


@pytest.mark.parametrize("record", shipped_records()[3::EVERY], ids=lambda record: record.id)
def test_no_published_strategy_beats_the_best_plan(record) -> None:
    found = dominance(record)
    if not found.comparable:
        # It ran, so the rules or the memory model are too strict for it; the accuracy page counts these.
        assert found.why
        return
    assert found.holds, found


@pytest.mark.parametrize(
    "record",
    [*shipped_records()[5::144], *[record for record in shipped_records() if record.model.is_moe][2::12]],
    ids=lambda record: record.id,
)
def test_no_published_strategy_beats_the_best_plan_under_auto(record) -> None:
    found = dominance_under_auto(record)
    assert found.holds or found.why, found


def test_most_published_strategies_can_be_compared() -> None:
    """A sample of what runs: were most of it illegal or too big, dominance would say nothing."""
    from autodeploy.calibration.record_prediction import predict_record
    from tests.support.dominance import incomparable

    sample = shipped_records()[::24]
    why = [incomparable(predict_record(record)) for record in sample]
    assert sum(not each for each in why) >= 0.75 * len(sample), why
