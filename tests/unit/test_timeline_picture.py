"""The pipeline of a step as the page draws it: every slot, what fills it, and each stage's bubble."""

from __future__ import annotations

import json

import pytest

from api.ui.plan_routes import TICKS_PER_S, stage_rows, timeline_picture
from autodeploy.search import planner
from autodeploy.specs.plan_details import PipelineTimeline, Slot
from autodeploy.specs.reading import read_spec_document
from tests.support.cpu_time import least_cpu_s

SPEC = {
    "model": "deepseek-v3",
    "cluster": {"profile": "cloudmatrix-384", "num_npus": 384},
    "training": {"seq_length": 4096, "global_batch_size": 1536},
}
STRATEGIES = (
    {"tp": 2, "pp": 8, "ep": 32, "etp": 1, "schedule": "1f1b", "recompute": {"granularity": "full"}},
    {"tp": 4, "pp": 3, "vpp": 7, "ep": 64, "etp": 1, "schedule": "adaptive_pipe"},
    {"tp": 2, "pp": 8, "vpp": 2, "ep": 32, "etp": 1, "schedule": "dualpipev"},
    {"tp": 2, "pp": 8, "ep": 32, "etp": 1, "schedule": "1f1b", "swap": ["attention"]},
)


def simulated(strategy: dict[str, object]) -> PipelineTimeline:
    spec = read_spec_document(SPEC | {"strategy": strategy})
    assert spec.strategy is not None
    return planner.timeline(spec, spec.strategy)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda each: "-".join(map(str, each.values())))
def test_lanes_add_up_to_each_slot_and_slots_with_bubbles_to_the_pipeline(strategy: dict[str, object]) -> None:
    """What pairs hide, replays and swaps included; the whole agrees with the estimate's breakdown on its stage."""
    timeline = simulated(strategy)
    for slot in timeline.slots:
        filled_s = slot.compute_s + slot.communication_s + slot.host_s
        assert filled_s == pytest.approx(slot.end_s - slot.start_s, rel=1e-9)
    assert len({slot.kind for slot in timeline.slots}) > 1
    for stage in timeline.stages:
        in_all_s = stage.compute_s + stage.communication_s + stage.host_s + stage.idle_s
        assert in_all_s == pytest.approx(timeline.makespan_s, rel=1e-9)
    spec = read_spec_document(SPEC | {"strategy": strategy})
    plan = planner.estimate(spec)
    parts = plan.breakdown
    assert timeline.step_time_s == pytest.approx(plan.step_time_s, rel=1e-9)
    pacing = min(timeline.stages, key=lambda stage: stage.idle_s)
    shown_s = parts.exposed_tp_s + parts.exposed_ep_s + parts.exposed_cp_s + parts.exposed_pp_s
    # The breakdown takes what pairs hide off all expert communication first, a slot off its own.
    beside_s = parts.imbalance_s if any(slot.kind == "pair" for slot in timeline.slots) else 0.0
    assert -1e-6 <= pacing.communication_s - shown_s <= beside_s + 1e-6
    assert pacing.idle_s == pytest.approx(parts.pipeline_bubble_s, abs=1e-6)
    assert pacing.communication_s > 0.0


def test_a_picture_has_every_slot_in_order() -> None:
    timeline = simulated(STRATEGIES[1])
    picture = timeline_picture(timeline, "zh")
    assert picture["words"]["bubble"] == "空泡"
    assert sum(map(len, picture["slots"])) == len(timeline.slots)
    for stage, slots in enumerate(picture["slots"]):
        assert [slot[0] for slot in slots] == sorted(slot[0] for slot in slots)
        for start, length, *_, number in slots:
            assert sum(picture["lanes"][stage][number]) == pytest.approx(length, abs=3)
            assert start + length <= picture["makespan"] + 1
        assert len(picture["lanes"][stage]) < 100, "slots of the same chunks share their lanes"
    pairs = [slot for slot in timeline.slots if slot.kind == "pair"]
    first = min(pairs, key=lambda slot: (slot.stage, slot.start_s))
    passes = (first.forward_micro_batch, first.forward_chunk, first.backward_micro_batch, first.backward_chunk)
    assert any(tuple(slot[2:6]) == passes for slot in picture["slots"][first.stage])
    forwards = [slot for slot in picture["slots"][0] if slot[4] < 0]
    assert forwards[0][:4] == (0, round(TICKS_PER_S * timeline.slots[0].end_s), 0, 0)


def test_stages_are_told_without_slots() -> None:
    whole = simulated(STRATEGIES[0])
    spec = read_spec_document(SPEC | {"strategy": STRATEGIES[0]})
    assert spec.strategy is not None
    alone = planner.timeline(spec, spec.strategy, slots=False)
    left_out = {"slots": (), "slots_left_out": len(whole.slots)}
    assert alone == whole.model_copy(update=left_out)


def test_the_table_says_each_stages_bubble() -> None:
    timeline = simulated(STRATEGIES[0])
    rows = stage_rows(timeline)
    assert [row.stage for row in rows] == list(range(8))
    assert all(row.idle == pytest.approx(row.idle_s / timeline.makespan_s) for row in rows)
    assert 0.0 < min(row.idle for row in rows) < max(row.idle for row in rows) < 0.5


def test_a_step_of_thousands_of_slots_is_told_at_once() -> None:
    """A page of DeepSeek-V3 on 384 cards has some five thousand; it is made anew for every reader."""
    slots = tuple(
        Slot(stage=n % 16, kind="forward", start_s=n / 16, end_s=n / 16 + 0.9, forward_micro_batch=n, forward_chunk=0)
        for n in range(5000)
    )
    long = PipelineTimeline(pp=16, vpp=1, micro_batches=5000, makespan_s=320.0, step_time_s=321.0, slots=slots)
    assert least_cpu_s(lambda: json.dumps(timeline_picture(long, "en")), limit_s=0.1) < 0.1
