"""Which of the features that `auto` leaves open each candidate uses: those under which its layers take least time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.unit_costs import MODULE, UnitCosts, costs_under, where_each
from autodeploy.strategies.rules import load_rules, scope_of, values_of

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Bools, Floats, Ints


def fastest_costs(context: Context, candidates: Candidates, *, one_machine: bool = False) -> tuple[UnitCosts, Ints]:
    """Costs of every candidate under its fastest features, and their place: 0 the context, then its alternatives.

    Time is that of one micro batch through all layers and back, in a pair where the schedule pairs. Of equals the first
    is used, and no alternative where a rule of the target asks for a feature that it lacks. What experts that migrate
    cost is left out of their time: they give way to copies only where those are faster all the same.

    one_machine : as of `unit_costs`.
    """
    costs_of = costs_under((context, *context.alternatives), candidates, one_machine=one_machine)
    costs = next(costs_of)
    which = np.zeros(len(candidates), dtype=np.int64)
    least = _seconds(costs, candidates)
    for place, (other, other_costs) in enumerate(zip(context.alternatives, costs_of, strict=True), start=1):
        seconds = _seconds(other_costs, candidates)
        better = (seconds < least) & _allowed(other, context, candidates)
        if better.any():
            costs = where_each(better, _alike(other_costs, costs), _alike(costs, other_costs))
            which, least = np.where(better, place, which), np.where(better, seconds, least)
    return costs, which


def resolved(context: Context, candidate: Candidates) -> Context:
    """The context of one candidate: the features that it uses are on, and nothing is open."""
    if not context.alternatives:
        return context
    place = int(fastest_costs(context, candidate)[1][0])
    return closed(context)[place]


def closed(context: Context) -> tuple[Context, ...]:
    """The context and its alternatives, by place, with nothing open."""
    return (replace(context, alternatives=()), *context.alternatives)


def _seconds(costs: UnitCosts, candidates: Candidates) -> Floats:
    """Of a micro batch through all layers, with experts where they migrate to [n]."""
    total = np.zeros(len(candidates))
    for place, (layer, count) in enumerate(zip(costs.layers, costs.counts, strict=True)):
        pairs = costs.moved_pairs or costs.pairs
        hidden = np.where(candidates.paired, pairs[place][place].hidden_s, 0.0)
        total = total + count * (costs.moved.get(place, layer).alone_s - hidden)
    module = costs.moved.get(MODULE, costs.mtp)
    return total if module is None else np.asarray(total + module.alone_s)


def _allowed(other: Context, context: Context, candidates: Candidates) -> Bools:
    """Where the target's rules on features leave the alternative [n]."""
    changed = {f"on_{name}" for name in other.features ^ context.features}
    values, legal = values_of(candidates, other.facts), np.ones(len(candidates), dtype=np.bool_)
    scope = scope_of(other.facts, other.target)
    for rule in load_rules():
        if rule.binds(scope) and rule.names() & changed:
            legal &= rule.mask(values)
    return legal


def _alike(costs: UnitCosts, other: UnitCosts) -> UnitCosts:
    """The costs with a place for migrated experts where the other has one: theirs do not move."""
    if len(costs.moved) >= len(other.moved):
        return costs
    layers = dict(enumerate(costs.layers)) | ({MODULE: costs.mtp} if costs.mtp is not None else {})
    return replace(costs, moved={place: layers[place] for place in other.moved}, moved_pairs=costs.pairs)
