"""What published runs say of the axes and features of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autodeploy.calibration.evidence import counts, evidence_of, realised_share, unproven
from autodeploy.calibration.shipped.class_spreads import covering
from autodeploy.costs.prediction_spread import RUN_AXES
from autodeploy.search.ranking.unproven import unproven_in
from tests.support.pace import at_most

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import Evidence

A2 = "ascend-910b"


def run(**more: Any) -> dict[str, Any]:
    plain = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size"), 1)
    words = {"schedule": "1f1b", "moe_dispatcher": "alltoall"}
    return {"moe": True, "ranks": 64, "seq_length": 4096, "features": [], **plain, **words, **more}


def row(name: str, **more: Any) -> dict[str, Any]:
    where = {"family": A2, "vendor_family": "ascend", "fit": A2, "device": "910B2", "npus": 64, "model": "M"}
    return {"id": name, **where, "left_out": 0.1, **run(), **more}


ROWS = [
    row("a", tp=8, ep=8, features=["mc2"]),
    row("b", tp=2, pp=4, moe=False, micro_batch_size=2, left_out=-0.2),
    row("c", family="ascend-910c", ep=32, moe_dispatcher="allgather"),
    row("d", family="nvidia-h100", vendor_family="nvidia", fit="nvidia-h100", ep=64),
]


@pytest.fixture
def table() -> Iterator[dict[str, Any]]:
    found: dict[str, Any] = {"records": ROWS}
    with covering(found):
        yield found


def item(axis: str, *, family: str = A2, **more: Any) -> Evidence:
    return next(each for each in evidence_of(run(**more), family) if each.axis == axis)


@pytest.mark.usefixtures("table")
def test_a_degree_counts_within_a_factor_of_two_on_chips_of_one_fit() -> None:
    assert [item("ep", ep=ep).runs for ep in (2, 4, 8, 16, 32, 64, 128)] == [0, 1, 1, 2, 1, 1, 0]
    assert item("ep", ep=64, family="ascend-910c").runs == 1
    assert item("ep", ep=32, family="nvidia-h100").runs == 1


@pytest.mark.usefixtures("table")
def test_what_is_not_used_needs_no_evidence() -> None:
    assert item("tp", tp=1).runs == item("schedule", schedule="dualpipev").runs == 3
    assert item("moe_dispatcher", moe_dispatcher="hierarchical").runs == 3
    assert item("schedule", schedule="dualpipev", pp=2).runs == 0
    assert item("schedule", pp=2).runs == 1
    assert item("moe_dispatcher", moe_dispatcher="allgather", ep=2).runs == 1


def test_a_run_that_does_not_use_an_axis_says_nothing_of_it() -> None:
    assert not counts(row("x", tp=1), "tp", 2)
    assert counts(row("x", micro_batch_size=1), "micro_batch_size", 2)
    assert not counts(row("x", ep=8, moe=False), "ep", 8)


@pytest.mark.usefixtures("table")
def test_features_and_the_nearest_of_those_that_have_them() -> None:
    found = item("feature", features=["mc2"], ep=32)
    assert (found.value, found.runs, found.nearest_record) == ("mc2", 1, "M on 64 910B2 (a)")
    assert found.error == pytest.approx(np.expm1(0.1), abs=1e-4)
    unseen = item("feature", features=["swap"], tp=2, pp=4, moe=False)
    assert (unseen.runs, unseen.nearest_record, unseen.error) == (0, "M on 64 910B2 (b)", round(np.expm1(-0.2), 4))


@pytest.mark.usefixtures("table")
def test_dense_runs_are_asked_nothing_of_experts() -> None:
    axes = [each.axis for each in evidence_of(run(moe=False), A2)]
    assert axes == ["tp", "pp", "vpp", "cp", "micro_batch_size", "schedule", "ranks"]


@pytest.mark.usefixtures("table")
def test_a_family_without_runs_has_none_and_another_table_is_another_answer() -> None:
    nothing = item("ep", family="nobody-1", ep=8)
    assert (nothing.runs, nothing.nearest_record, nothing.error) == (0, None, None)
    with covering({"records": [*ROWS, row("e", ep=8)]}):
        assert item("ep", ep=8).runs == 2
    assert item("ep", ep=8).runs == 1


def test_the_shipped_table_has_every_axis_and_answers_quickly() -> None:
    evidence_of(run(), A2)
    with at_most(0.2):  # ten times what it takes
        for number in range(40):
            found = evidence_of(run(tp=2 ** (number % 4), ep=2 ** (number % 9), features=["adaptive_pipe"]), A2)
    assert [each.axis for each in found] == [*RUN_AXES, "ranks", "feature"]
    assert all(each.error is not None and each.nearest_record for each in found)
    assert item("tp", tp=8).runs > 20
    assert item("ep", ep=256).runs == 0
    assert item("tp", family="nvidia-b200", tp=8).runs > 20


def test_the_share_of_unproven_gains_is_a_prior_where_no_table_has_it() -> None:
    with covering({"records": []}):
        assert realised_share() == pytest.approx((0.5, 12.0**-0.5))
    with covering({"realised": {"share": 0.6, "sigma": 0.1, "n": 7, "how": "pairs"}}):
        assert realised_share() == (0.6, 0.1)


def test_what_is_unproven_is_what_has_no_run() -> None:
    for number in range(64):
        features = ["adaptive_pipe", "no_such_feature"][: number % 3]
        asked = run(tp=2 ** (number % 5), ep=2 ** (number % 9), pp=1 + number % 7, features=features)
        assert unproven(asked, A2) == unproven_in(evidence_of(asked, A2))
