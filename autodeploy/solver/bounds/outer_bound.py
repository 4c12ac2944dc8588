"""The stage bound of many candidates at once, from the costs that the sweep reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.evaluation.stages.pair_shares import tight_shares
from autodeploy.evaluation.stages.stage_memory import GRADIENT_SHARE, communication_bytes
from autodeploy.evaluation.stages.step_classes import step_classes
from autodeploy.solver.bounds.stage_bound import Batch, lower_bound_s, steady_micro_batches
from autodeploy.solver.inner.layer_choices import Choices, Part, join
from autodeploy.solver.inner.memory_options import WHOLE, possible_choices, rivals
from autodeploy.strategies.candidates import concatenate, of_schedules
from autodeploy.strategies.memory_rules import launchable_each
from autodeploy.strategies.placement_rules import placement_limits
from autodeploy.strategies.tree import distinct
from autodeploy.workload.memory_choices import compete
from cost_models.schedule import model_parts, schedules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.cut_costs import CutCosts
    from autodeploy.evaluation.layers.layer_cost import LayerCost, PhaseCost
    from autodeploy.evaluation.stages.step_classes import StepClass, StepClasses
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Bools, Floats, Ints

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
    blocks: list[_Costed] = []
    for rows in alike.blocks(BLOCK):
        if should_cancel is not None and should_cancel():
            return low_s
        some = candidates.take(rows)
        classes = step_classes(costs.of(rows), some, context)
        blocks.append(_Costed(classes, some, context, Alike(outer[rows])))
    low = alike.least(low_s)
    found = low.copy()
    if blocks:
        parts = _joined(blocks)
        for rows in _same_shape(parts.shapes):
            if should_cancel is not None and should_cancel():
                break
            found[rows] = lower_bound_s(parts.batch(rows), low[rows], np.full(len(rows), high_s))
    return np.maximum(low_s, found[alike.inverse])


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
    known = schedules()
    steady = [
        steady_micro_batches(int(c.pp[row]), int(c.micro_batches[row]), known[int(c.schedule[row])]) for row in first
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


def _joined(costed: list[_Costed]) -> _Parts:
    """The groups of all blocks, in order."""
    # A block knows the choices that free something in it.
    names = [
        list(dict.fromkeys(name for step in steps for name in step.cost.choices))
        for steps in zip(*(block.classes.layers for block in costed), strict=True)
    ]
    blocks = [block.parts(names) for block in costed]
    return _Parts(
        blocks[0].context,
        concatenate([block.shapes for block in blocks]),
        np.concatenate([block.room for block in blocks]),
        tuple(join(parts) for parts in zip(*(block.layers for block in blocks), strict=True)),
        tuple(
            (join([piece for piece, _ in pieces]), pieces[0][1])
            for pieces in zip(*(block.pieces for block in blocks), strict=True)
        ),
    )


class _Costed:
    """A block of candidates with its costs, reduced to groups of alike ones."""

    def __init__(self, classes: StepClasses, candidates: Candidates, context: Context, alike: Alike) -> None:
        self.classes, self.candidates, self.context, self.alike = classes, candidates, context, alike
        allowed = launchable_each(candidates, context.facts, context.target)
        self.allowed = {name: allowed[name] for name in sorted(possible_choices(context))}

    def parts(self, names: list[list[str]]) -> _Parts:
        """Of each group the least seconds and bytes, and the most that is hidden and saved.

        names: of the choices of each layer class.
        """
        classes, context, n = self.classes, self.context, len(self.candidates)
        shares = tight_shares(
            [[pair.hidden_s for pair in row] for row in classes.pairs], [layer.count for layer in classes.layers]
        )
        hidden = [
            (self.alike.most(_column(f, n)), self.alike.most(_column(b, n)))
            for f, b in zip(shares.forward_s, shares.backward_s, strict=True)
        ]
        widest = np.max([_column(layer.cost.worst_activation_bytes, n) for layer in classes.layers], axis=0)
        beside = communication_bytes(self.candidates, context) + context.machine.runtime_bytes
        room = (context.limit_bytes - beside) / (1.0 + context.machine.fragmentation)
        none = np.zeros(len(self.alike.first))
        empty = Choices.none(len(none))
        return _Parts(
            context,
            self.candidates.take(self.alike.first),
            # Recomputing whole layers takes the workspace of one more: left out here, so that one bound serves both.
            self.alike.most(room - GRADIENT_SHARE * widest),
            tuple(
                self._part(step, shares, self._choices(step.cost, mine), step.count)
                for step, shares, mine in zip(classes.layers, hidden, names, strict=True)
            ),
            tuple((self._part(piece, (none, none), empty, 1), piece is classes.embedding) for piece in classes.pieces),
        )

    def _part(self, step: StepClass, hidden: tuple[Floats, Floats], choices: Choices, count: int) -> Part:
        n, cost, least = len(self.candidates), step.cost, self.alike.least
        slow = self.context.slowest_device_factor - 1.0

        def seconds(phase: PhaseCost) -> Floats:
            return least(_column(phase.total_s + slow * phase.compute_s, n))

        return Part(
            seconds(cost.forward),
            seconds(cost.backward),
            least(_column(step.static.total, n)),
            least(_column(cost.activation_bytes, n)),
            least(_column(step.tail.total_s, n)),
            *hidden,
            choices,
            count,
        )

    def _choices(self, cost: LayerCost, names: list[str]) -> Choices:
        """Of some names; what a candidate may not choose, or frees nothing, frees nothing."""
        n, names = len(self.candidates), [name for name in names if name in self.allowed]
        saved, extra = (np.zeros((len(names), len(self.alike.first))) for _ in range(2))
        for number, name in enumerate(names):
            if name not in cost.choices:
                continue
            found, allowed = cost.choices[name], self.allowed[name]
            saved[number] = self.alike.most(np.where(allowed, _column(found.saved_bytes, n), 0.0))
            extra[number] = self.alike.least(_column(found.recompute_s, n))
        partly = np.array([name != WHOLE for name in names], dtype=np.bool_)
        return Choices(
            saved,
            extra,
            rivals(len(names), lambda a, b: compete(names[a], names[b])),
            self._most_freed(cost, saved[partly].sum(axis=0)),
        )

    def _most_freed(self, cost: LayerCost, partly: Floats) -> Floats:
        """Most bytes that choices free from one layer [n]: what there is, or what all that are allowed free."""
        kept = self.alike.most(_column(cost.activation_bytes, len(self.candidates)))
        some = np.minimum(kept, partly)
        if WHOLE not in self.allowed:
            return np.asarray(some)
        return np.where(self.alike.most(self.allowed[WHOLE]), kept, some)


def _column(values: object, n: int) -> Floats:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))
