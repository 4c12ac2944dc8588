"""Seconds of one operator of a layer: the compute formulas by its kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from autodeploy.costs.workload.operators import EVERY_PASS
from cost_models import compute
from cost_models.arrays import Floats
from cost_models.compute import cast_s, weight_cast_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.costs.workload.operators import Operator


@dataclass(frozen=True)
class OperatorTime:
    """Seconds of one operator [n]: forward, gradient of its input, gradient of its weight."""

    forward_s: Floats
    input_gradient_s: Floats
    weight_gradient_s: Floats

    @cached_property
    def backward_s(self) -> Floats:
        """Both gradients."""
        return np.asarray(self.input_gradient_s + self.weight_gradient_s)

    def each(self, runs: float) -> OperatorTime:
        """One of `runs` equal operators that these are the seconds of."""
        if runs == 1.0:
            return self
        whole = (self.forward_s, self.input_gradient_s, self.weight_gradient_s)
        return OperatorTime(*(np.asarray(part / runs) for part in whole))


def operator_time(op: Operator, machine: Machine, factor: Floats | float) -> OperatorTime:
    """`operator_times` of one operator."""
    return operator_times([op], machine, factor)[0]


def operator_times(operators: Sequence[Operator], machine: Machine, factor: Floats | float) -> list[OperatorTime]:
    """Seconds of operators that do `factor` times their rows, bytes or attention FLOPs.

    In 8 bits a linear layer casts its input forward and its output's gradient backward; the head and attention stay in
    16. Source: Transformer Engine's FP8 recipes; Megatron-LM --fp8-format.
    """
    alike: dict[tuple[object, ...], list[int]] = {}
    passes: dict[int, Passes] = {}
    for place, op in enumerate(operators):
        if op.kind == "gemm":
            alike.setdefault((op.wide, op.weighted, op.gradient_bytes), []).append(place)
        else:
            passes[place] = _passes_s(op, machine, factor)
    for places in alike.values():
        passes |= zip(places, _products_s([operators[place] for place in places], machine), strict=True)
    return [_time_of(op, passes[place], machine) for place, op in enumerate(operators)]


Passes = tuple[Floats, Floats, Floats]
"""Seconds of an operator's forward, of the gradient of its input and of the gradient of its weight [n]."""


def _time_of(op: Operator, times: Passes, machine: Machine) -> OperatorTime:
    """Every pass as often as the operator runs it, by the software of the release."""
    if op.passes is not EVERY_PASS:
        times = (times[0] * op.passes[0], times[1] * op.passes[1], times[2] * op.passes[2])
    if op.runs != 1.0:
        times = (times[0] * op.runs, times[1] * op.runs, times[2] * op.runs)
    slower = machine.software_factor * (machine.routing_factor if op.routes else 1.0)
    return OperatorTime(*(np.asarray(t * slower) for t in times))


def _products_s(ops: Sequence[Operator], machine: Machine) -> Iterator[Passes]:
    """Passes of plain multiplications that differ in their sizes alone, priced together [operators, n].

    A batch of equal products is one operator: its fixed cost is paid once.
    """
    first = ops[0]
    rates = machine.rates.wide() if first.wide else machine.rates
    once = rates.cube_op_s
    m, n, k, g = (_stacked([getattr(op, name) for op in ops]) for name in ("rows", "columns", "depth", "groups"))
    shapes = ((m, n, k, None), (m, k, n, None), (k, n, m, first.gradient_bytes))
    forward, dx, dw = (
        (compute.gemm_s(rows, columns, depth, rates, groups=g, result_bytes=result) - once) * g + once
        for rows, columns, depth, result in shapes
    )
    if rates.quantised:
        forward, dx = forward + cast_s(m * k * g, rates), dx + cast_s(m * n * g, rates)
        if first.weighted:
            forward = forward + weight_cast_s(k * n * g, rates, backward=False)
            dx = dx + weight_cast_s(k * n * g, rates, backward=True)
    return zip(forward, dx, dw, strict=True)


def _stacked(values: Sequence[Floats | float]) -> Floats:
    """The same number of several operators [operators, n]; n is 1 where it is alike for all candidates."""
    arrays = [np.asarray(value) for value in values]
    width = next((array.size for array in arrays if array.size != 1), 1)
    stack = np.empty((len(arrays), width))
    for row, array in zip(stack, arrays, strict=True):
        row[:] = array
    return stack


def _passes_s(op: Operator, machine: Machine, factor: Floats | float) -> Passes:
    """Passes of an operator that is no plain multiplication."""
    rates = machine.rates.wide() if op.wide or op.kind == "attention" else machine.rates
    if op.kind == "grouped_gemm":
        m, n, k, g = op.rows * factor, op.columns, op.depth, op.groups
        return (
            compute.grouped_gemm_s(g, m, n, k, rates, fused=op.fused) + cast_s(g * m * k, rates),
            compute.grouped_gemm_s(g, m, k, n, rates, fused=op.fused) + cast_s(g * m * n, rates),
            compute.grouped_gemm_s(
                g, k, n, m, rates, fused=op.fused, uneven_depth=True, result_bytes=op.gradient_bytes
            ),
        )
    none = np.zeros(1)
    if op.kind == "attention":
        work = op.flops * factor, op.backward_flops * factor
        ahead, back = (compute.attention_s(w, op.head_dim, op.seq, rates, backward=n > 0) for n, w in enumerate(work))
        if not np.any(op.forward_bytes):
            return ahead, back, none
        rows = (compute.movement_s(size * factor, 0.0, rates) for size in (op.forward_bytes, op.backward_bytes))
        forward, backward = (np.maximum(one, other) for one, other in zip((ahead, back), rows, strict=True))
        return forward, backward, none
    moved = op.forward_bytes * factor, op.backward_bytes * factor
    if op.kind == "vector":
        forward, backward = (compute.vector_s(size, op.launches, rates) for size in moved)
    else:
        forward, backward = (compute.movement_s(size, op.launches, rates, whole_rows=op.whole_rows) for size in moved)
    return forward, backward, none


T = TypeVar("T")
P = ParamSpec("P")


class Prices:
    """Prices of objects that several layers share: a module of prediction is a layer and a head again."""

    def __init__(self) -> None:
        self._priced: dict[tuple[object, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, of: tuple[object, ...], price: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`price` of its arguments, found once for each of the objects `of`, on which alone it differs."""
        key = (price, *map(id, of))
        if key not in self._priced:
            # The objects are kept, or others could get their numbers.
            self._priced[key] = of, price(*args, **kwargs)
        priced: T = self._priced[key][1]
        return priced

    def operators(
        self, operators: Sequence[Operator], machine: Machine, factor: Floats | float
    ) -> dict[str, OperatorTime]:
        """`operator_times` by name, of those that are new together."""
        keys = [(operator_times, id(op), id(factor)) for op in operators]
        new = [place for place, key in enumerate(keys) if key not in self._priced]
        times = operator_times([operators[place] for place in new], machine, factor)
        for place, time in zip(new, times, strict=True):
            self._priced[keys[place]] = (operators[place], factor), time
        return {op.name: self._priced[key][1] for op, key in zip(operators, keys, strict=True)}
