"""told(outcome): what a measurement moved, and why, as one paragraph."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from autodeploy.messages import Message, joined

if TYPE_CHECKING:
    from autodeploy.specs.resources import MovedDocument, RunDocument, RunOutcomeDocument

MOST_FACTORS: Final = 4


def told(outcome: RunOutcomeDocument) -> str:
    """The run against its prediction, the numbers of its cluster that it moved, the plan now, the order of plans."""
    run, moved = outcome.run, outcome.moved
    sentences: list[str] = []
    if run.measured_step_time_s is not None:
        sentences.append(_took(run))
    if run.measured.out_of_memory is not None:
        sentences.append(Message("follow.ran_out"))
    if not run.counts:
        sentences.append(Message("follow.only_kept"))
    elif moved is not None:
        sentences += [_factors(moved), *_now(moved)]
        changed = [plan for plan in outcome.reranked if plan.new_rank != plan.old_rank]
        first = next((p.plan_id for p in outcome.reranked if p.new_rank == 1 and p.search_id == _search(outcome)), "")
        said = Message("follow.order", count=len(changed), first=first) if changed else Message("follow.same_order")
        sentences.append(said)
    return Message("follow.paragraph", text=joined(sentences, "sentence")) if sentences else ""


def _search(outcome: RunOutcomeDocument) -> str:
    """The search of the plan that moved; of several the newest."""
    return next((p.search_id for p in outcome.reranked if p.plan_id == outcome.run.plan_id), "")


def _took(run: RunDocument) -> str:
    assert run.error is not None
    return Message(
        "follow.took",
        measured=f"{run.measured_step_time_s:.4g}",
        predicted=f"{run.predicted_step_time_s:.4g}",
        error=f"{100.0 * run.error:+.1f}",
        where=Message("follow.within") if run.inside else Message("follow.beyond"),
        low=f"{run.predicted_low_s:.4g}",
        high=f"{run.predicted_high_s:.4g}",
    )


def _factors(moved: MovedDocument) -> str:
    most = list(moved.moved_by.items())[:MOST_FACTORS]
    if not most:
        return Message("follow.no_factor")
    parts = (f"{name} {100.0 * math.expm1(change):+.1f} %" for name, change in most)
    return Message("follow.factors", factors=joined(parts, "comma"))


def _now(moved: MovedDocument) -> list[str]:
    numbers = {"now": moved.step_time_s, "low": moved.low_s, "high": moved.high_s, "before": moved.old_step_time_s}
    said: list[str] = [
        Message("follow.plan_now", plan=moved.plan_id, **{name: f"{value:.4g}" for name, value in numbers.items()})
    ]
    if moved.p_fits is not None and moved.old_p_fits is not None and moved.p_fits != moved.old_p_fits:
        chances = {"now": f"{100.0 * moved.p_fits:.0f}", "before": f"{100.0 * moved.old_p_fits:.0f}"}
        said.append(Message("follow.fits_now", **chances))
    return said
