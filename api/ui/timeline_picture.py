"""The simulated pipeline of a step as the page's canvas draws it, and stage by stage for a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api.ui.formats import count, seconds
from api.ui.languages import texts
from autodeploy.figures.palette import LANE_COLOURS, SLOT_COLOURS

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.timeline import PipelineTimeline, Slot

WORDS = "timeline."
SHARED_WORDS = {
    "stage": "stage",
    "compute": "part.compute_s",
    "communication": "label.profiler_communication",
    "bubble": "part.pipeline_bubble_s",
    "named": "common.text_and_numbers",
}
TICKS_PER_S = 100_000
"""Instants are sent as whole ticks of 10 us: finer than a pixel of a second that fills a screen."""


@dataclass(frozen=True, slots=True)
class StageRow:
    """A line of the table: seconds of a stage between the step's first forward and its last backward, and shares."""

    stage: int
    compute_s: float
    communication_s: float
    host_s: float
    idle_s: float
    idle: float


def stage_rows(timeline: PipelineTimeline) -> tuple[StageRow, ...]:
    """One for each stage; `idle` is the share of its bubble."""
    return tuple(
        StageRow(number, s.compute_s, s.communication_s, s.host_s, s.idle_s, s.idle_s / timeline.makespan_s)
        for number, s in enumerate(timeline.stages)
    )


def timeline_lead(timeline: PipelineTimeline, lang: Language) -> str:
    """How large the pipeline is and when it ends."""
    return texts(lang)["plan.timeline_lead"].format(
        stages=timeline.pp,
        micro_batches=count(timeline.micro_batches),
        makespan=seconds(timeline.makespan_s),
        step=seconds(timeline.step_time_s),
    )


def timeline_picture(timeline: PipelineTimeline, lang: Language) -> dict[str, Any]:
    """Slots of each stage in the order of time, and what they are drawn with.

    `slots[stage]`: start, length, micro batch and chunk of the forward, of the backward (-1 where it has none), and the
    number of its lanes in `lanes[stage]`, which are compute, communication and host. Start, length and lanes are ticks.
    """
    stages: list[list[tuple[int, ...]]] = [[] for _ in range(timeline.pp)]
    lanes: list[dict[tuple[int, ...], int]] = [{} for _ in range(timeline.pp)]
    for slot in timeline.slots:
        own = tuple(_ticks(lane_s) for lane_s in (slot.compute_s, slot.communication_s, slot.host_s))
        number = lanes[slot.stage].setdefault(own, len(lanes[slot.stage]))
        start = _ticks(slot.start_s)
        stages[slot.stage].append((start, _ticks(slot.end_s) - start, *_passes(slot), number))
    page_words = texts(lang)
    words = {name.removeprefix(WORDS): text for name, text in page_words.items() if name.startswith(WORDS)}
    words |= {name: page_words[key] for name, key in SHARED_WORDS.items()}
    return {
        "words": words,
        "lead": timeline_lead(timeline, lang),
        "colours": SLOT_COLOURS | LANE_COLOURS,
        "ticks_per_s": TICKS_PER_S,
        "makespan": _ticks(timeline.makespan_s),
        "step": _ticks(timeline.step_time_s),
        "vpp": timeline.vpp,
        "left_out": timeline.slots_left_out,
        "slots": stages,
        "lanes": [list(each) for each in lanes],
    }


def _ticks(instant_s: float) -> int:
    return round(TICKS_PER_S * instant_s)


def _passes(slot: Slot) -> tuple[int, int, int, int]:
    """Micro batch and chunk of the forward and of the backward."""
    values = (slot.forward_micro_batch, slot.forward_chunk, slot.backward_micro_batch, slot.backward_chunk)
    forward_batch, forward_chunk, backward_batch, backward_chunk = (-1 if v is None else v for v in values)
    return forward_batch, forward_chunk, backward_batch, backward_chunk
