"""What a plan takes for granted about uneven work, in one sentence each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.inputs.expert_balance import (
    migrated_balance,
    peak_over_layers,
    placed_balance,
    prediction_error,
    routed_balance,
)
from autodeploy.evaluation.stages.step_classes import expert_layers
from autodeploy.specs.planset import ExpertImbalance

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates


def assumptions_of(candidate: Candidates, context: Context) -> tuple[str, ...]:
    """Where loads come from and what levelling them leaves; nothing where two factors say it all."""
    notes = []
    if context.model.is_moe and int(candidate.ep[0]) > 1:
        notes += _expert_notes(candidate, context)
    if context.packs is not None:
        without = replace(context, features=context.features - {"sample_rearrangement"})
        plain, used = (float(c.exchange_features(candidate).attention_imbalance[0]) for c in (without, context))
        text = f"attention takes {plain:.2f} times the mean on the ranks with the longest documents"
        if "sample_rearrangement" in context.mechanisms:
            text += f", {used:.2f} after samples are rearranged"
        notes.append(text)
    return tuple(notes)


def expert_imbalance(candidate: Candidates, context: Context) -> ExpertImbalance | None:
    """The factors that a plan's time and memory are predicted with; None without experts."""
    if not context.model.is_moe:
        return None
    groups, loads = context.expert_ranks(candidate), context.loads
    balance = placed_balance(context.loads, groups)
    share = float(peak_over_layers(context.loads, groups, expert_layers(context, candidate))[0])
    peak = float(balance.peak[0])
    return ExpertImbalance(
        ep=int(candidate.ep[0]),
        time_factor=float(balance.compute[0]),
        memory_factor=peak,
        memory_factor_of_stage=1.0 + share * (peak - 1.0),
        router=loads.router,
        forced=loads.router == "forced",
        from_file=loads.series is not None,
    )


def _expert_notes(candidate: Candidates, context: Context) -> list[str]:
    ep, groups = candidate.ep, context.expert_ranks(candidate)
    placed = float(context.exchange_features(candidate).balance.compute[0])
    levels = bool(context.levels_experts(candidate)[0])
    notes = []
    if context.loads.series is not None:
        of = "ranks of a log" if context.loads.of_ranks else "experts"
        notes.append(f"loads of {of} from a file: imbalance {placed:.2f} over EP {int(ep[0])} in the mean over time")
    if context.loads.capacity is not None:
        notes.append(
            f"tokens above {context.loads.capacity} times the mean expert's are dropped: imbalance {placed:.2f}"
        )
    if levels and "mutual_routing" in context.mechanisms:
        copied = routed_balance(context.loads, groups, np.ones(1, dtype=np.bool_))
        notes.append(
            f"where it is faster, copies of hot experts ({int(copied.hot_experts[0])} a layer) compute "
            f"{100.0 * (1.0 - float(copied.mean_exchange[0])):.0f} % of all tokens where they are"
        )
    elif levels and "expert_migration" in context.mechanisms:
        moved = migrated_balance(context.loads, groups)
        family = (
            "" if context.loads.series is not None and not context.loads.of_ranks else " (lognormal loads of experts)"
        )
        interval = context.loads.levelling.interval_steps
        notes.append(
            f"where it pays, experts move every {interval} steps: imbalance {placed:.2f} -> "
            f"{float(moved.compute[0]):.2f}{family}, loads predicted within "
            f"{100.0 * prediction_error(context.loads, groups):.0f} %"
        )
    return notes
