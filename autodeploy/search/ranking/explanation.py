"""Plans in words: why the best is best, and what divisibility costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.costs.stages.stage_memory import saves_buffers
from autodeploy.messages import Message, joined
from autodeploy.specs.planset import PARTS, Loss, Plan
from autodeploy.stack.expression import evaluate, names
from autodeploy.stack.features import FEATURES
from autodeploy.stack.software import memory_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.planset import Breakdown


# Which of the features that are on a candidate makes use of.
def features_in_use(candidate: Candidates, context: Context) -> set[str]:
    """Names of the features that the first candidate uses; recompute and swap are its layout's to name.

    What an axis of the strategy says is in use whatever is on; facts of a run that are no features always are, but
    those of memory, which its software brings.
    """
    possible = {name: each for name, each in FEATURES.items() if each.axis or name in context.features}
    used = {name for name, each in possible.items() if holds(each.in_use, candidate, context)}
    return used | (set(context.features) - FEATURES.keys() - memory_facts())


def holds(condition: str, candidate: Candidates, context: Context) -> bool:
    """Whether a condition of a feature's record holds for the first candidate.

    Beside axes and facts of the spec it may name: paired (the schedule runs a forward against a backward pass), packed
    (documents of different lengths), levels_experts (experts can be moved or copied), saves_buffers (communication
    buffers sized by message are smaller), distributed_optimizer.
    """
    return bool(np.all(evaluate(condition, _values(candidate, context, names(condition)))))


def _values(candidate: Candidates, context: Context, named: frozenset[str]) -> dict[str, Any]:
    """Everything a condition may name; what takes time only where it does."""
    values = context.condition_values(candidate, named)
    if "levels_experts" in named:
        values["levels_experts"] = context.levels_experts(candidate)[:1]
    if "saves_buffers" in named:
        values["saves_buffers"] = saves_buffers(candidate, context)
    return values


# What a plan still loses.
def headroom(step_time_s: float, mfu: float, breakdown: Breakdown) -> tuple[Loss, ...]:
    """Losses of a step, the largest first; they and the ideal time (mfu * step_time_s) sum to the step.

    The loss of `compute_s` is what operators take beyond peak FLOP/s; every other part is lost whole.
    """
    ideal_s = mfu * step_time_s
    parts = {part: getattr(breakdown, part) for part in PARTS}
    parts["compute_s"] -= ideal_s
    order = sorted((part for part in parts if parts[part] > 0.0), key=lambda part: -parts[part])
    losses, gone_s = [], 0.0
    for part in order:
        gone_s += parts[part]
        losses.append(
            Loss(
                part=part,
                seconds=parts[part],
                mfu_points=100.0 * (ideal_s / (step_time_s - parts[part]) - mfu),
                mfu_up_to_here=ideal_s / max(step_time_s - gone_s, ideal_s),
            )
        )
    return tuple(losses)


def degrees(plan: Plan) -> str:
    """TP2 PP8 VPP2 EP32 DP48: the degrees above one, and dp; where it generates too, where and how."""
    s = plan.strategy
    parts = [f"TP{s.tp}", f"PP{s.pp}"]
    parts += [f"VPP{s.vpp}"] if s.vpp > 1 else []
    parts += [f"CP{s.cp}"] if s.cp > 1 else []
    parts += [f"EP{s.ep}"] if s.ep > 1 else []
    parts += [f"DP{s.dp}"]
    layout = " ".join(parts)
    if s.rl is None:
        return layout
    experts = f" EP{s.rl.generation.ep}" if s.rl.generation.ep > 1 else ""
    generation = f"{s.rl.placement} TP{s.rl.generation.tp}{experts}"
    return Message("ranking.and_generates", layout=layout, generation=generation)


def explanation(plan: Plan, other: Plan | None) -> str:
    """Difference of another plan's step time and of its parts, the largest first."""
    if other is None:
        largest = sorted(PARTS, key=lambda p: -getattr(plan.breakdown, p))[:3]
        shares = [
            Message(
                "common.text_and_numbers",
                text=Message(f"part.{p}"),
                numbers=f"{getattr(plan.breakdown, p) / plan.step_time_s:.0%}",
            )
            for p in largest
        ]
        return Message("ranking.time_goes_to", parts=joined(shares))
    than = _than(other.step_time_s - plan.step_time_s, plan.step_time_s, degrees(other))
    added, saved = _differences(plan, other)
    if added and saved:
        return Message("ranking.and_adds_and_saves", than=than, added=added, saved=saved)
    if added:
        return Message("ranking.and_adds", than=than, added=added)
    return Message("ranking.and_saves", than=than, saved=saved) if saved else than


def added_and_saved(plan: Plan, other: Plan) -> Message:
    """The parts of a step that another plan adds and saves most of."""
    added, saved = _differences(plan, other)
    if added and saved:
        return Message("ranking.adds_and_saves", added=added, saved=saved)
    if added:
        return Message("ranking.adds", added=added)
    return Message("ranking.saves", saved=saved) if saved else Message("ranking.no_part_differs")


def _differences(plan: Plan, other: Plan) -> tuple[Message | None, Message | None]:
    """Seconds of parts that another plan adds and saves, the largest; None where none differs."""
    gains = {p: getattr(other.breakdown, p) - getattr(plan.breakdown, p) for p in PARTS}
    better = [p for p in sorted(gains, key=lambda p: -gains[p]) if gains[p] > 0.002 * plan.step_time_s][:3]
    worse = [p for p in sorted(gains, key=lambda p: gains[p]) if gains[p] < -0.002 * plan.step_time_s][:2]
    return (_seconds_of(better, gains) if better else None, _seconds_of(worse, gains) if worse else None)


def _than(longer_s: float, step_time_s: float, layout: str) -> Message:
    share = f"{100.0 * abs(longer_s) / step_time_s:.1f}"
    if share == "0.0":
        return Message("ranking.takes_as_long", layout=layout)
    return Message("ranking.takes_longer" if longer_s > 0.0 else "ranking.takes_less_time", layout=layout, gain=share)


def _seconds_of(parts: Sequence[str], gains: Mapping[str, float]) -> Message:
    seconds = (Message("ranking.seconds_of_part", gain=abs(gains[p]), part=Message(f"part.{p}")) for p in parts)
    return joined(seconds)


def memory_explanation(plan: Plan, other: Plan | None) -> str:
    """Parts of the fullest stage's memory, and those of another plan instead."""
    if other is None:
        fullest = max(plan.stages, key=lambda stage: stage.total_gib).memory_gib.model_dump()
        largest = sorted(fullest, key=lambda kind: -fullest[kind])[:3]
        shares = [
            Message(
                "common.text_and_numbers", text=Message(f"figure.memory.{kind}"), numbers=f"{fullest[kind]:.1f} GiB"
            )
            for kind in largest
        ]
        return Message("ranking.memory_goes_to", parts=joined(shares))
    return Message(
        "ranking.memory_and_time_against",
        more=other.peak_memory_gib - plan.peak_memory_gib,
        time=other.step_time_s / plan.step_time_s - 1.0,
        layout=degrees(other),
    )
