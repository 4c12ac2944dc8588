"""The simulated pipeline of a step: a row for each stage, a bar for each forward and backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.figures.labels import WORDS, Language
from autodeploy.figures.layout import bar_trace, quiet_figure
from autodeploy.figures.palette import REST, SLOT_COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autodeploy.figures.layout import Figure, Trace
    from autodeploy.specs.timeline import PipelineTimeline, Slot

MOST_BARS = 4000
DRAWN = 0.97  # of a slot's time: neighbours stay apart however far one looks into the picture


def shown_slots(timeline: PipelineTimeline, most: int = MOST_BARS) -> tuple[Slot, ...]:
    """At most `most` slots: of a longer step the first and the last ones of every stage."""
    half = max(2, most // timeline.pp) // 2
    kept = [
        slots if len(slots) <= 2 * half + 1 else slots[:half] + slots[len(slots) - half :]
        for slots in _of_stages(timeline).values()
    ]
    return tuple(slot for slots in kept for slot in slots)


def _of_stages(timeline: PipelineTimeline) -> dict[int, list[Slot]]:
    stages: dict[int, list[Slot]] = {}
    for slot in timeline.slots:
        stages.setdefault(slot.stage, []).append(slot)
    return stages


def pipeline_timeline(timeline: PipelineTimeline, lang: Language = "en", *, most: int = MOST_BARS) -> Figure:
    """Seconds from the step's first forward; what follows the pipeline is the last bar of every stage."""
    words = WORDS[lang]
    slots = shown_slots(timeline, most)
    traces: list[Trace] = [*_rests(timeline, most, words["rest"])]
    traces += [
        _bars([s for s in slots if s.kind == kind], kind, words[kind], colour)
        for kind, colour in SLOT_COLOURS.items()
        if any(slot.kind == kind for slot in slots)
    ]
    tail_s = timeline.step_time_s - timeline.makespan_s
    if tail_s > 0:
        traces.append(
            bar_trace(
                name=words["after"],
                meta="after",
                orientation="h",
                base=[timeline.makespan_s] * timeline.pp,
                x=[tail_s] * timeline.pp,
                y=list(range(timeline.pp)),
                marker={"color": SLOT_COLOURS["after"]},
                hovertemplate=f"{words['after']}: {tail_s:.3f} s<extra></extra>",
            )
        )
    return quiet_figure(
        traces,
        x_title=words["seconds"],
        y_title=words["stage"],
        height_px=140 + timeline.pp * max(22, min(40, 200 // timeline.pp)),
        barmode="overlay",
        bargap=0.12,
        dragmode="zoom",
        yaxis={"autorange": "reversed", "dtick": 1, "fixedrange": True},
        xaxis={"range": [0, timeline.step_time_s]},
        showlegend=True,
    )


def _rests(timeline: PipelineTimeline, most: int, name: str) -> Iterator[Trace]:
    """One bar a stage over the slots of a long step that are not drawn one by one."""
    half = max(2, most // timeline.pp) // 2
    spans = [
        (stage, slots[half].start_s, slots[-half - 1].end_s, len(slots) - 2 * half)
        for stage, slots in _of_stages(timeline).items()
        if len(slots) > 2 * half + 1
    ]
    if not spans:
        return
    yield bar_trace(
        name=name,
        meta="rest",
        orientation="h",
        base=[round(start_s, 5) for _, start_s, _, _ in spans],
        x=[round(end_s - start_s, 5) for _, start_s, end_s, _ in spans],
        y=[stage for stage, _, _, _ in spans],
        customdata=[f"{count:,}" for _, _, _, count in spans],
        marker={"color": REST, "line": {"width": 0}},
        hovertemplate=f"{name}: %{{customdata}}<extra></extra>",
    )


def _bars(slots: Sequence[Slot], kind: str, name: str, colour: str) -> Trace:
    return bar_trace(
        name=name,
        meta=kind,
        orientation="h",
        base=[round(slot.start_s, 5) for slot in slots],
        x=[round(DRAWN * (slot.end_s - slot.start_s), 5) for slot in slots],
        y=[slot.stage for slot in slots],
        customdata=[f"{_name(slot)}: {slot.start_s:.3f} s + {slot.end_s - slot.start_s:.3f} s" for slot in slots],
        marker={"color": colour, "line": {"width": 0}},
        hovertemplate="%{customdata}<extra></extra>",
    )


def _name(slot: Slot) -> str:
    """`F3.0+B1.1`: way, micro batch and chunk."""
    parts = []
    if slot.forward_micro_batch is not None:
        parts.append(f"F{slot.forward_micro_batch}.{slot.forward_chunk}")
    if slot.backward_micro_batch is not None:
        parts.append(f"B{slot.backward_micro_batch}.{slot.backward_chunk}")
    return "+".join(parts)
