"""The least time that memory options add to a stage with one chunk: an integer program over the option counts.

Counts of options compete for layers in far too many ways to be listed (tens of thousands for sixty layers and ten
options); CP-SAT finds the least in a few milliseconds and proves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from ortools.sat.python import cp_model

from autodeploy.search.choices.memory_options import cliques
from autodeploy.search.cp_sat.model import solve_model
from cost_models.arrays import product

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.stages.inner_problem import MemoryOption
    from cost_models.arrays import Floats, Ints

UNITS: Final = 1 << 30
"""All layers with all options, in integer units of bytes or of seconds: roundings stay below 1e-6 of them.

CP-SAT takes milliseconds up to 2^34; with 2^40 it was seen to cut a variable's domain in two for minutes.
"""
BUDGET: Final = 0.2
"""Deterministic time of CP-SAT; a program that needs more gives a bound, and the best counts so far."""


@dataclass(frozen=True, eq=False)
class LeastAdded:
    """added_s: no counts that free enough add less; counts [options] that add the least found, None without any."""

    added_s: float
    counts: Ints | None


@dataclass(frozen=True, slots=True)
class SwapWindow:
    """Time of swaps beside a stage's own forward and backward pass before they are waited for."""

    forward_s: float
    backward_s: float
    host_link_bytes_per_s: float


class StageProgram:
    """Counts x of options on a stage's layers that free enough memory, and the seconds that they add to its passes.

    A forward pass waits for swaps by max(0, x s / link - F); a backward pass lasts x e longer and waits by
    max(0, x s / link - B - x e): the formulas of `inner_problem.chunk_times`. Costs are rounded down and savings up, so
    whatever is least here is at most the truth.

    layers : of each class in the stage's one chunk [classes].
    need_bytes : to be freed for each micro batch in flight.
    window : what swaps hide beside; None: they are never waited for, which relaxes the problem.
    most_swap_bytes : the host keeps no more of each micro batch in flight.
    should_cancel : polled while CP-SAT works, which then gives what it has.
    """

    def __init__(
        self,
        options: tuple[MemoryOption, ...],
        layers: Sequence[int],
        need_bytes: float,
        window: SwapWindow | None,
        most_swap_bytes: float = float("inf"),
        should_cancel: Callable[[], bool] | None = None,
    ) -> None:
        self._options = options
        self._most = np.array([layers[option.layer_class] for option in options], dtype=np.int64)
        self._need_bytes = need_bytes
        self._window = window
        self._most_swap_bytes = most_swap_bytes
        self._should_cancel = should_cancel

    @cached_property
    def both(self) -> LeastAdded | None:
        """Seconds that both passes take longer together, at least; None when no counts free as much."""
        return self._solved(forward=True, backward=True)

    def fitting(self) -> LeastAdded | None:
        """The same of counts that are sure to free enough: also what roundings may lack."""
        unit = 1.0 / self._scale(self._each("saved_bytes"), self._need_bytes)
        return self._solved(forward=True, backward=True, more_bytes=unit * (1.0 + float(self._most.sum())))

    @cached_property
    def forward_s(self) -> float:
        """Seconds that a forward pass waits for swaps, at least."""
        best = self.both
        if self._window is None or best is None or best.counts is None:
            return 0.0
        if float(product(self._transfer_s, best.counts)) <= self._window.forward_s:
            return 0.0
        least = self._solved(forward=True, backward=False)
        return 0.0 if least is None else least.added_s

    @cached_property
    def backward_s(self) -> float:
        """Seconds that a backward pass takes longer, at least."""
        least = self._solved(forward=False, backward=True) if self._waits else self.both
        return 0.0 if least is None else least.added_s

    @cached_property
    def _transfer_s(self) -> Floats:
        """Seconds on the host's link for one layer [options]; 0 where nobody waits for it."""
        if self._window is None:
            return np.zeros(len(self._options))
        return self._each("swap_bytes") / self._window.host_link_bytes_per_s

    @cached_property
    def _waits(self) -> bool:
        """Whether all swaps together are longer than a pass."""
        window = self._window
        return window is not None and float(product(self._transfer_s, self._most)) > min(
            window.forward_s, window.backward_s
        )

    def _each(self, name: str) -> Floats:
        """A number of every option [options]; 0 for those without layers."""
        return np.array([getattr(option, name) for option in self._options], dtype=np.float64) * (self._most > 0)

    def _solved(self, *, forward: bool, backward: bool, more_bytes: float = 0.0) -> LeastAdded | None:
        model = cp_model.CpModel()
        counts = [model.new_int_var(0, int(most), "") for most in self._most]
        self._restrict(model, counts, self._need_bytes + more_bytes)
        extra, transfer = self._each("extra_backward_s"), self._transfer_s
        per_s = self._scale(extra + transfer)
        added = [_sum(counts, np.floor(extra * per_s))] if backward else []
        if self._window is not None and self._waits:
            out = (forward, self._window.forward_s, transfer)
            back = (backward, self._window.backward_s, transfer - extra)
            for counted, hidden_s, moved in (out, back):
                if counted:
                    waited = model.new_int_var(0, UNITS, "")
                    hides = min(UNITS, int(np.ceil(hidden_s * per_s)))
                    model.add(waited >= _sum(counts, np.floor(moved * per_s)) - hides)
                    added.append(waited)
        model.minimize(sum(added))
        result = solve_model(model, BUDGET, 0, self._should_cancel)
        if result.infeasible:
            return None
        applied = None if result.solver is None else np.array([result.solver.value(count) for count in counts])
        return LeastAdded(result.bound / per_s, applied)

    def _restrict(self, model: cp_model.CpModel, counts: list[cp_model.IntVar], need_bytes: float) -> None:
        """Rivals share their layers, enough is freed, the host keeps what is swapped."""
        for clique in cliques(self._options):
            model.add(sum(counts[i] for i in clique) <= int(self._most[clique[0]]))
        saved, swapped = self._each("saved_bytes"), self._each("swap_bytes")
        per_byte = self._scale(saved, need_bytes)
        model.add(_sum(counts, np.ceil(saved * per_byte)) >= int(np.floor(need_bytes * per_byte)))
        if np.isfinite(self._most_swap_bytes):
            per_byte = self._scale(swapped, self._most_swap_bytes)
            model.add(_sum(counts, np.floor(swapped * per_byte)) <= int(np.ceil(self._most_swap_bytes * per_byte)))

    def _scale(self, each: Floats, at_least: float = 0.0) -> float:
        """Integer units in one of what every layer adds: all together stay below `UNITS`."""
        return UNITS / max(float(product(each, self._most)), at_least, 1e-30)


def _sum(counts: list[cp_model.IntVar], weights: Floats) -> cp_model.LinearExpr:
    return cp_model.LinearExpr.weighted_sum(counts, weights.astype(np.int64).tolist())
