"""The stage bound of many candidates at once, from the costs that the sweep reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.costs.stages.stage_memory import GRADIENT_SHARE, communication_bytes
from autodeploy.costs.stages.step_classes import PASSES, step_classes
from autodeploy.costs.workload.memory_choices import compete
from autodeploy.search.bounds.stage_bound import Batch, lower_bound_s, steady_micro_batches
from autodeploy.search.choices.layer_choices import COSTS_OF_PARTS, Choices, Part, join
from autodeploy.search.choices.memory_options import possible_choices, rivals
from autodeploy.space.candidates import concatenate, of_schedules
from autodeploy.space.rules import launchable_each, placement_limits
from autodeploy.space.tree import distinct
from autodeploy.stack.memory_choices import WHOLE
from cost_models.schedule import model_parts, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.layer_cost import LayerCost
    from autodeploy.costs.layers.unit_costs import CutCosts
    from autodeploy.costs.stages.step_classes import StepClass, StepClasses
    from autodeploy.space.candidates import Candidates
    from cost_models.arrays import Bools, Floats, Ints

    _Block = tuple[StepClasses, Candidates, "Alike"]

BLOCK = 8_192  # candidates whose costs are computed together


def outer_bounds_s(
    candidates: Candidates,
    context: Context,
    costs: CutCosts,
    outer: Ints,
    low_s: Floats,
    high_s: float,
    *,
    should_cancel: Callable[[], bool] | None = None,
) -> Floats:
    """Step times that no layout and no memory choice of each candidate can beat [n].

    At least low_s, what is known already; inf where it is above high_s or the layers do not fit. Candidates of one
    outer strategy (the same number in `outer`) share the bound of one that has the least bytes and seconds of all.
    """
    alike = Alike(outer)
    blocks: list[_Block] = []
    for rows in alike.blocks(BLOCK):
        if should_cancel is not None and should_cancel():
            return low_s
        members = candidates.take(rows)
        blocks.append((step_classes(costs.of(rows), members, context), members, Alike(outer[rows])))
    low = alike.least(low_s)
    bound_s = low.copy()
    if blocks:
        parts = _joined(context, blocks)
        for rows in _same_shape(parts.shapes):
            if should_cancel is not None and should_cancel():
                break
            bound_s[rows] = lower_bound_s(parts.batch(rows), low[rows], np.full(len(rows), high_s))
    return np.maximum(low_s, bound_s[alike.inverse])


class Alike:
    """Rows grouped by a number: the first row of each group, and reductions over each."""

    def __init__(self, numbers: Ints) -> None:
        _, self.first, self.inverse = np.unique(numbers, return_index=True, return_inverse=True)
        self._order = np.argsort(self.inverse, kind="stable")
        self._starts = np.searchsorted(self.inverse[self._order], np.arange(len(self.first)))

    def blocks(self, most: int) -> Iterator[Ints]:
        """All rows, group by group in the order of their numbers: about `most` at once, never a part of a group."""
        ends = np.append(self._starts[1:], len(self._order))
        start = 0
        while start < len(self._order):
            fitting = ends[(ends > start) & (ends <= start + most)]
            end = int(fitting[-1]) if len(fitting) else int(ends[ends > start][0])
            yield self._order[start:end]
            start = end

    def least(self, values: Floats) -> Floats:
        """The least of each group."""
        return np.asarray(np.minimum.reduceat(values[self._order], self._starts))

    def most(self, values: Floats | Bools) -> npt.NDArray[Any]:
        """The largest of each group."""
        return np.asarray(np.maximum.reduceat(values[self._order], self._starts))


def shapes_of(candidates: Candidates) -> Ints:
    """A number for each schedule, shape and steady order [n]: what is computed for one holds for all alike."""
    c = candidates
    first, order = distinct((c.pp, c.micro_batches, of_schedules("own_order", c.schedule)))
    kinds = schedules()
    steady = [
        steady_micro_batches(int(c.pp[row]), int(c.micro_batches[row]), kinds[int(c.schedule[row])]) for row in first
    ]
    return distinct((c.schedule, c.pp, c.vpp, np.array(steady, dtype=np.int64)[order]))[1]


def _same_shape(candidates: Candidates) -> list[Ints]:
    """Rows of one schedule, shape and steady order."""
    shapes = shapes_of(candidates)
    order = np.argsort(shapes, kind="stable")
    return [np.asarray(rows) for rows in np.split(order, np.cumsum(np.bincount(shapes))[:-1])]


@dataclass(frozen=True, eq=False)
class _Parts:
    """Layer classes and pieces of candidates, as arrays of one entry a group of alike ones.

    shapes: a candidate of each group; room [groups]: bytes of a stage for its layers and pieces; pieces: each with
    whether it is on the first part of the model.
    """

    context: Context
    shapes: Candidates
    room: Floats
    layers: tuple[Part, ...]
    pieces: tuple[tuple[Part, bool], ...]

    def batch(self, rows: Ints) -> Batch:
        """The groups at some rows, alike in schedule and shape."""
        c, context = self.shapes, self.context
        pp, vpp = int(c.pp[rows[0]]), int(c.vpp[rows[0]])
        kind = schedules()[int(c.schedule[rows[0]])]
        places = model_parts(kind.name, pp, vpp)
        pieces = []
        for piece, first in self.pieces:
            part = piece.take(rows)
            pieces += [replace(part, stage=stage, chunk=chunk) for stage, chunk in places[0 if first else -1]]
        total = sum(part.count for part in self.layers)
        equal = placement_limits(c.take(rows[:1]), context.facts, context.target).equal
        return Batch(
            kind.name,
            pp,
            vpp,
            c.micro_batches[rows],
            tuple(part.take(rows) for part in self.layers),
            tuple(pieces),
            np.repeat(self.room[rows][:, None], pp, axis=1),
            np.zeros(len(rows)),  # sends only add time
            np.zeros(len(rows)),
            1 if context.model.num_hidden_layers >= pp * vpp else 0,
            -(-total // len(places)) if equal else total,
        )


def _joined(context: Context, blocks: Sequence[_Block]) -> _Parts:
    """The groups of all blocks, in order."""
    # A block knows the choices that free something in it.
    names = [
        list(dict.fromkeys(name for step in steps for name in step.cost.choices))
        for steps in zip(*(classes.layers for classes, _, _ in blocks), strict=True)
    ]
    parts = [_easiest(context, *block, names) for block in blocks]
    firsts = [first for _, first in parts[0].pieces]
    pieces = zip(*([piece for piece, _ in each.pieces] for each in parts), strict=True)
    return _Parts(
        context,
        concatenate([each.shapes for each in parts]),
        np.concatenate([each.room for each in parts]),
        tuple(join(layers) for layers in zip(*(each.layers for each in parts), strict=True)),
        tuple((join(piece), first) for piece, first in zip(pieces, firsts, strict=True)),
    )


def _easiest(
    context: Context, classes: StepClasses, candidates: Candidates, alike: Alike, names: list[list[str]]
) -> _Parts:
    """Of each group the least seconds and bytes, and the most that is hidden and saved.

    names : of the choices of each layer class.
    """
    n, groups = len(candidates), len(alike.first)
    allowed = launchable_each(candidates, context.facts, context.target)
    possible = possible_choices(context)
    none = np.zeros(groups)

    def least(values: object) -> Floats:
        return alike.least(_column(values, n))

    def most(values: object) -> Floats:
        return np.asarray(alike.most(_column(values, n)))

    def choices(cost: LayerCost, names: list[str]) -> Choices:
        """Of some names; what a candidate may not choose, or frees nothing, frees nothing."""
        names = [name for name in names if name in possible]
        kinds = [cost.choices.get(name) for name in names]
        saved = [
            none if each is None else most(np.where(allowed[name], each.saved_bytes, 0.0))
            for name, each in zip(names, kinds, strict=True)
        ]
        extra = [none if each is None else least(each.recompute_s) for each in kinds]
        # What there is where whole layers may be recomputed, elsewhere what all that are allowed free.
        kept = most(cost.activation_bytes)
        freed = np.minimum(kept, sum((each for name, each in zip(names, saved, strict=True) if name != WHOLE), none))
        if WHOLE in possible:
            freed = np.where(most(allowed[WHOLE]), kept, freed)
        apart = rivals(len(names), lambda a, b: compete(names[a], names[b]))
        return Choices(np.array(saved).reshape(-1, groups), np.array(extra).reshape(-1, groups), apart, freed)

    def part(step: StepClass, hidden: tuple[Floats, Floats], choices: Choices, count: int) -> Part:
        cost = step.cost
        each = (*map(step.pass_s, PASSES), step.static.total, cost.activation_bytes, step.tail.total_s)
        costs: dict[str, Any] = dict(zip(COSTS_OF_PARTS, map(least, each), strict=True))
        return Part(**costs, hidden_forward_s=hidden[0], hidden_backward_s=hidden[1], choices=choices, count=count)

    shares = classes.most_hidden_s
    hidden = [(most(f), most(b)) for f, b in zip(shares.forward_s, shares.backward_s, strict=True)]
    widest = np.max([_column(layer.cost.worst_activation_bytes, n) for layer in classes.layers], axis=0)
    beside = communication_bytes(candidates, context) + context.machine.runtime_bytes
    room = (context.limit_bytes - beside) / (1.0 + context.machine.fragmentation)
    return _Parts(
        context,
        candidates.take(alike.first),
        # Recomputing whole layers takes the workspace of one more: left out here, so that one bound serves both.
        most(room - GRADIENT_SHARE * widest),
        tuple(
            part(step, hidden_by_layer, choices(step.cost, names_of_layer), step.count)
            for step, hidden_by_layer, names_of_layer in zip(classes.layers, hidden, names, strict=True)
        ),
        tuple(
            (part(piece, (none, none), Choices.none(groups), 1), piece is classes.embedding) for piece in classes.pieces
        ),
    )


def _column(values: object, n: int) -> Floats:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))
