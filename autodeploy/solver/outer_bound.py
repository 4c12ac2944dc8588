"""The stage bound of many candidates at once, from the costs that the sweep reads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.evaluation.pair_shares import tight_shares
from autodeploy.evaluation.stage_classes import step_classes
from autodeploy.evaluation.stage_memory import GRADIENT_SHARE, communication_bytes
from autodeploy.evaluation.unit_costs import unit_costs
from autodeploy.solver.memory_choices import possible_choices
from autodeploy.solver.stage_bound import (
    Batch,
    Choice,
    Choices,
    Part,
    independent,
    lower_bound_s,
    steady_micro_batches,
)
from autodeploy.strategies.candidates import SCHEDULES
from autodeploy.strategies.memory_rules import launchable_each
from autodeploy.strategies.tree import distinct_cuts
from autodeploy.workload.memory_choices import compete
from cost_models.schedule import model_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from autodeploy.evaluation.context import Context
    from autodeploy.evaluation.layer_cost import LayerCost, PhaseCost
    from autodeploy.evaluation.stage_classes import StepClass, StepClasses
    from autodeploy.strategies.candidates import Bools, Candidates, Ints
    from autodeploy.workload.operators import Floats
    from cost_models.schedule import ScheduleKind

WHOLE = "full"
BLOCK = 8_192  # candidates whose costs are computed together


def outer_bounds_s(
    candidates: Candidates,
    context: Context,
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
    found = low_s.copy()
    for start in range(0, len(candidates), BLOCK):
        if should_cancel is not None and should_cancel():
            break
        rows = slice(start, start + BLOCK)
        found[rows] = _block(candidates.take(rows), context, outer[rows], low_s[rows], high_s, should_cancel)
    return found


def _block(
    candidates: Candidates,
    context: Context,
    outer: Ints,
    low_s: Floats,
    high_s: float,
    should_cancel: Callable[[], bool] | None,
) -> Floats:
    first, inverse = distinct_cuts(candidates, by_replicas=context.cuts_by_replicas)
    classes = step_classes(unit_costs(context, candidates.take(first)).take(inverse), candidates, context)
    alike = Alike(outer)
    parts = _Parts(classes, candidates, context, alike)
    low = alike.least(low_s)
    found = low.copy()
    for rows in _same_shape(candidates.take(alike.first)):
        if should_cancel is not None and should_cancel():
            break
        high = np.full(len(rows), high_s)
        found[rows] = lower_bound_s(parts.batch(rows), low[rows], high)
    return np.maximum(low_s, found[alike.inverse])


class Alike:
    """Rows grouped by a number: the first row of each group, and reductions over each."""

    def __init__(self, numbers: Ints) -> None:
        _, self.first, self.inverse = np.unique(numbers, return_index=True, return_inverse=True)
        self._order = np.argsort(self.inverse, kind="stable")
        self._starts = np.searchsorted(self.inverse[self._order], np.arange(len(self.first)))

    def least(self, values: Floats) -> Floats:
        """The least of each group."""
        return np.asarray(np.minimum.reduceat(values[self._order], self._starts))

    def most(self, values: Floats | Bools) -> npt.NDArray[Any]:
        """The largest of each group."""
        return np.asarray(np.maximum.reduceat(values[self._order], self._starts))


def _same_shape(candidates: Candidates) -> list[Ints]:
    """Rows of one schedule, shape and steady order."""
    c = candidates
    steady = [steady_micro_batches(int(p), int(m)) for p, m in zip(c.pp, c.micro_batches, strict=True)]
    key = np.stack([c.schedule, c.pp, c.vpp, np.array(steady, dtype=np.int64)])
    _, inverse = np.unique(key, axis=1, return_inverse=True)
    order = np.argsort(inverse.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(inverse.ravel()))
    return [np.asarray(rows) for rows in np.split(order, ends[:-1])]


class _Parts:
    """Layer classes and pieces of a block of candidates, as arrays of one entry a group of alike ones."""

    def __init__(self, classes: StepClasses, candidates: Candidates, context: Context, alike: Alike) -> None:
        self.classes, self.candidates, self.context, self.alike = classes, candidates, context, alike
        n = len(candidates)
        shares = tight_shares(
            [[pair.hidden_s for pair in row] for row in classes.pairs], [layer.count for layer in classes.layers]
        )
        self.hidden = [
            (_column(f, n)[alike.first], _column(b, n)[alike.first])
            for f, b in zip(shares.forward_s, shares.backward_s, strict=True)
        ]
        allowed = launchable_each(candidates, context.facts, context.target)
        self.allowed = {name: allowed[name] for name in sorted(possible_choices(context))}
        self.choices = [self._choices(layer.cost) for layer in classes.layers]
        widest = np.max([_column(layer.cost.activation_bytes, n) for layer in classes.layers], axis=0)
        beside = communication_bytes(candidates, context) + context.machine.runtime_bytes
        room = (context.limit_bytes - beside) / (1.0 + context.machine.fragmentation)
        # Recomputing whole layers takes the workspace of one more: left out here, so that one bound serves both.
        self.room = alike.most(room - GRADIENT_SHARE * widest)
        self.shapes = candidates.take(alike.first)
        self.layers = [
            self._part(step, hidden, choices, step.count)
            for step, hidden, choices in zip(classes.layers, self.hidden, self.choices, strict=True)
        ]
        none = np.zeros(len(alike.first))
        empty = Choices((), None, (), none)
        self.pieces = [self._part(piece, (none, none), empty, 1) for piece in classes.pieces]

    def batch(self, rows: Ints) -> Batch:
        """The candidates at some rows, alike in schedule and shape."""
        c, classes = self.shapes, self.classes
        pp, vpp = int(c.pp[rows[0]]), int(c.vpp[rows[0]])
        schedule: ScheduleKind = SCHEDULES[int(c.schedule[rows[0]])]  # type: ignore[assignment]
        places = model_parts(schedule, pp, vpp)
        layers = tuple(part.take(rows) for part in self.layers)
        pieces = []
        for piece, part in zip(classes.pieces, self.pieces, strict=True):
            for stage, chunk in places[0] if piece is classes.embedding else places[-1]:
                pieces.append(replace(part.take(rows), stage=stage, chunk=chunk))
        total = sum(step.count for step in classes.layers)
        equal = "virtual_pipeline_balance" not in self.context.features or (
            self.context.target == "mindspeed-llm" and schedule == "dualpipev"
        )
        return Batch(
            schedule,
            pp,
            vpp,
            c.micro_batches[rows],
            layers,
            tuple(pieces),
            np.repeat(self.room[rows][:, None], pp, axis=1),
            np.zeros(len(rows)),  # sends only add time
            np.zeros(len(rows)),
            1 if self.context.model.num_hidden_layers >= pp * vpp else 0,
            -(-total // len(places)) if equal else total,
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

    def _choices(self, cost: LayerCost) -> Choices:
        n = len(self.candidates)
        names = [name for name in cost.choices if name in self.allowed]
        groups, hub, beside = independent(names, compete)

        def choice(name: str) -> Choice:
            found = cost.choices[name]
            saved = np.where(self.allowed[name], _column(found.saved_bytes, n), 0.0)
            return Choice(self.alike.most(saved), self.alike.least(_column(found.recompute_s, n)))

        return Choices(
            tuple(tuple(map(choice, group)) for group in groups),
            None if hub is None else choice(hub),
            tuple(tuple(map(choice, group)) for group in beside),
            self._most_saved(cost, [choice(name) for name in names if name != WHOLE]),
        )

    def _most_saved(self, cost: LayerCost, partly: list[Choice]) -> Floats:
        """Bytes that choices free from one layer at most [n]: what there is, or what all that are allowed free."""
        kept = self.alike.most(_column(cost.activation_bytes, len(self.candidates)))
        some = np.minimum(kept, sum((one.saved_bytes for one in partly), np.zeros(len(kept))))
        if WHOLE not in self.allowed:
            return np.asarray(some)
        return np.where(self.alike.most(self.allowed[WHOLE]), kept, some)


def _column(values: object, n: int) -> Floats:
    return np.broadcast_to(np.asarray(values, dtype=np.float64), (n,))
