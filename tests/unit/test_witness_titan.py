"""torchtitan was seen to exchange what is predicted of sharded parameters, at any rank of any world."""

from __future__ import annotations

import json

import pytest

from tests.witness import titan

pytestmark = pytest.mark.unit
PLANS = titan.plans()
RECORDS = json.loads(titan.RECORDS.read_text())


@pytest.mark.parametrize("name", PLANS)
def test_bytes_and_messages_of_a_rank_are_those_that_torchtitan_was_seen_to_have(name):
    assert titan.differences(titan.predicted(PLANS[name]), titan.seen(RECORDS[name])) == []


def test_records_are_of_the_plans_and_cover_every_way_of_sharding():
    assert RECORDS.keys() == PLANS.keys()
    groups = {message[0] for record in RECORDS.values() for message in record["messages"]}
    assert groups >= {"dp", "edp", "copies", "ep", "tp"}


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({"ep": 4}, {("edp", "all_gather"), ("edp", "reduce_scatter")}),
        ({"recompute": {"granularity": "none"}}, {("ep", "all_to_all"), ("tp", "all_gather")}),
    ],
)
def test_a_plan_that_was_not_run_differs(changed, kinds):
    plan = PLANS["experts_8"]
    other = {**plan, "strategy": {**plan["strategy"], **changed}}
    found = titan.differences(titan.predicted(other), titan.seen(RECORDS["experts_8"]))
    assert all(any(str(kind)[1:-1] in line for line in found) for kind in kinds)


def test_settings_of_torchtitan_follow_the_plan(tmp_path):
    asked = titan.request_of(PLANS["experts_in_two_copies"], tmp_path / "answer.json")
    assert (
        asked["parallelism"]["data_parallel_shard_degree"] * asked["parallelism"]["data_parallel_replicate_degree"]
        == 128
    )
    assert asked["parallelism"]["expert_parallel_degree"] == asked["model"]["num_experts"] // 2
    assert not asked["full"]
