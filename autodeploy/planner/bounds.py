"""What the sweep proves of the strategies of a search: a sample of them, each at its bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.errors import UnsupportedError
from autodeploy.evaluation.stages.stage_memory import communication_bytes, on_card_bytes
from autodeploy.messages import Message
from autodeploy.planner.prepared import prepare
from autodeploy.planner.search import with_best_batch
from autodeploy.ranking.solved_strategies import axes_asked, mfu_of_a_second
from autodeploy.solver.outer.frontier import outer_tuples
from autodeploy.solver.search_space import search_space
from autodeploy.specs.strategy_bounds import StrategyBound, StrategyBounds
from autodeploy.strategies.tree import distinct
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from autodeploy.solver.search_space import Searched
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats, Ints

FASTEST_SHARE = 0.4
"""Of a sample: those of the least bounds, where plans are chosen. The rest is spread evenly over all others."""


def strategy_bounds(spec: Spec, most: int) -> StrategyBounds:
    """At most so many strategies that are legal and may fit, by rising bound of their step; the same ones every time.

    Candidates that differ in how optimizer states are kept, or in the pairwise dispatcher, are one strategy.

    Raises
    ------
    SpecError
        if the spec asks for something that can't be planned with, or has too many strategies.
    UnsupportedError
        for post-training, whose strategies are searched apart for update and generation.
    """
    if spec.training.rl is not None:
        raise UnsupportedError(Message("planner.post_training_not_swept"), path="/training/rl")
    prepared = with_best_batch(prepare(spec))
    searched = search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    fastest, least_bytes = _by_strategy(searched)
    chosen = sampled(searched.swept.bound_s[fastest], most)
    least_gib = _on_card_gib(searched, fastest[chosen], least_bytes[chosen])
    ratio = prepared.identity.ratio
    of_contexts = [mfu_of_a_second(context) for context in searched.contexts]
    return StrategyBounds(
        total=len(fastest),
        sample=tuple(
            _bound(searched, int(index), gib, ratio, of_contexts[int(searched.variant[index])])
            for index, gib in zip(fastest[chosen], least_gib.tolist(), strict=True)
        ),
    )


def sampled(bound_s: Floats, most: int) -> Ints:
    """Places of a sample of bounds [n], by rising bound: the lowest ones, then evenly spaced ones of the rest."""
    order = np.argsort(bound_s, kind="stable")
    if len(order) <= most:
        return order
    lowest = int(FASTEST_SHARE * most)
    rest = most - lowest
    spread = lowest + np.arange(rest) * (len(order) - lowest) // rest
    return np.concatenate([order[:lowest], order[spread]])


def _by_strategy(searched: Searched) -> tuple[Ints, Floats]:
    """Of each strategy the candidate with the lowest bound, and the fewest bytes that the allocator holds under any."""
    if not len(searched.candidates):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    cards = np.array([context.num_npus for context in searched.contexts])[searched.variant]
    number = distinct([outer_tuples(searched.candidates), cards])[1]
    order = np.lexsort((searched.swept.bound_s, number))
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    return order[starts], np.minimum.reduceat(searched.swept.least_bytes[order], starts)


def _on_card_gib(searched: Searched, chosen: Ints, allocator_bytes: Floats) -> Floats:
    """Memory on the card of candidates whose allocators hold so many bytes [n]."""
    gib = np.zeros(len(chosen))
    for number in np.unique(searched.variant[chosen]).tolist():
        of_variant = searched.variant[chosen] == number
        context = searched.contexts[number]
        beside = (
            communication_bytes(searched.candidates.take(chosen[of_variant]), context) + context.machine.runtime_bytes
        )
        gib[of_variant] = on_card_bytes(allocator_bytes[of_variant], beside, context.machine.fragmentation) / GIB
    return gib


def _bound(searched: Searched, index: int, least_gib: float, ratio: float, mfu_of_a_second: float) -> StrategyBound:
    context = searched.context_of(index)
    axes = searched.candidates.axes_at(index)
    step_s = ratio * float(searched.swept.bound_s[index])
    return StrategyBound(
        axes=axes_asked(axes, moe=context.model.is_moe),
        dp=int(axes["dp"]),
        num_npus=context.num_npus,
        step_time_s=step_s,
        peak_memory_gib=least_gib,
        mfu=mfu_of_a_second / step_s,
    )
