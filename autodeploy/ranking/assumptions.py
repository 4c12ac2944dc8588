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
from autodeploy.messages import Message
from autodeploy.specs.planset import ExpertImbalance

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates


def assumptions_of(candidate: Candidates, context: Context) -> tuple[str, ...]:
    """Where loads come from and what levelling them leaves; nothing where two factors say it all."""
    notes: list[str] = []
    if context.model.is_moe and int(candidate.ep[0]) > 1:
        notes += _expert_notes(candidate, context)
    if context.packs is not None:
        without = replace(context, features=context.features - {"sample_rearrangement"})
        plain, used = (float(c.exchange_features(candidate).attention_imbalance[0]) for c in (without, context))
        if "sample_rearrangement" in context.mechanisms:
            key = "ranking.attention_takes_after_samples_are_rearranged"
            notes.append(Message(key, factor=plain, after=used))
        else:
            notes.append(Message("ranking.attention_takes_times_mean_on_ranks_with_longest", factor=plain))
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
    notes: list[str] = []
    if context.loads.series is not None:
        notes.append(Message("ranking.loads_from_file", factor=placed, ep=int(ep[0])))
    if context.loads.capacity is not None:
        notes.append(
            Message("ranking.tokens_above_times_mean_expert_s_are_dropped", limit=context.loads.capacity, factor=placed)
        )
    if levels and "mutual_routing" in context.mechanisms:
        copied = routed_balance(context.loads, groups, np.ones(1, dtype=np.bool_))
        notes.append(
            Message(
                "ranking.where_it_is_faster_copies_of_hot_experts",
                count=int(copied.hot_experts[0]),
                share=100.0 * (1.0 - float(copied.mean_exchange[0])),
            )
        )
    elif levels and "expert_migration" in context.mechanisms:
        moved = migrated_balance(context.loads, groups)
        notes.append(
            Message(
                "ranking.experts_move_where_it_pays",
                steps=context.loads.levelling.interval_steps,
                before=placed,
                after=float(moved.compute[0]),
                error=100.0 * prediction_error(context.loads, groups),
            )
        )
    return notes
