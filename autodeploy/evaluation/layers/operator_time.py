"""Seconds of one operator of a layer: the compute formulas by its kind."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from autodeploy.workload.operators import EVERY_PASS
from cost_models import compute
from cost_models.compute import cast_s, weight_cast_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.inputs.machine import Machine
    from autodeploy.workload.operators import Operator
    from cost_models.arrays import Floats


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
    """Seconds of an operator that does `factor` times its rows, bytes or attention FLOPs.

    In 8 bits a linear layer casts its input forward and its output's gradient backward; the head and attention stay in
    16. Source: Transformer Engine's FP8 recipes; Megatron-LM --fp8-format.
    """
    rates = machine.rates.wide() if op.wide or op.kind == "attention" else machine.rates
    if op.kind == "gemm":
        m, n, k, g = op.rows, op.columns, op.depth, op.groups
        once = rates.cube_op_s
        shapes = ((m, n, k, None), (m, k, n, None), (k, n, m, op.gradient_bytes))
        # A batch of equal products is one operator: its fixed cost is paid once.
        forward, dx, dw = (
            (compute.gemm_s(rows, columns, depth, rates, groups=g, result_bytes=result) - once) * g + once
            for rows, columns, depth, result in shapes
        )
        times = (forward, dx, dw)
        if rates.quantised:
            times = (forward + cast_s(m * k * g, rates), dx + cast_s(m * n * g, rates), dw)
            if op.weighted:
                cast = [weight_cast_s(k * n * g, rates, backward=back) for back in (False, True)]
                times = (times[0] + cast[0], times[1] + cast[1], dw)
    elif op.kind == "grouped_gemm":
        m, n, k, g = op.rows * factor, op.columns, op.depth, op.groups
        times = (
            compute.grouped_gemm_s(g, m, n, k, rates, fused=op.fused) + cast_s(g * m * k, rates),
            compute.grouped_gemm_s(g, m, k, n, rates, fused=op.fused) + cast_s(g * m * n, rates),
            compute.grouped_gemm_s(
                g, k, n, m, rates, fused=op.fused, uneven_depth=True, result_bytes=op.gradient_bytes
            ),
        )
    elif op.kind == "attention":
        flops = op.flops * factor
        times = (
            compute.attention_s(flops, op.head_dim, op.seq, rates, backward=False),
            compute.attention_s(op.backward_flops * factor, op.head_dim, op.seq, rates, backward=True),
            np.zeros(1),
        )
    else:
        moved = op.forward_bytes * factor, op.backward_bytes * factor
        if op.kind == "vector":
            forward, backward = (compute.vector_s(size, op.launches, rates) for size in moved)
        else:
            forward, backward = (
                compute.movement_s(size, op.launches, rates, whole_rows=op.whole_rows) for size in moved
            )
        times = (forward, backward, np.zeros(1))
    if op.passes is not EVERY_PASS:
        times = (times[0] * op.passes[0], times[1] * op.passes[1], times[2] * op.passes[2])
    if op.runs != 1.0:
        times = (times[0] * op.runs, times[1] * op.runs, times[2] * op.runs)
    slower = machine.software_factor * (machine.routing_factor if op.routes else 1.0)
    return OperatorTime(*(np.asarray(t * slower) for t in times))


T = TypeVar("T")
P = ParamSpec("P")


class Prices:
    """What was found for objects that several layers share: a module of prediction is a layer and a head again."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], tuple[tuple[object, ...], Any]] = {}

    def once(self, of: tuple[object, ...], price: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`price` of its arguments, found once for each of the objects `of`, on which alone it differs."""
        key = (price, *map(id, of))
        if key not in self._found:
            # The objects are kept, or others could get their numbers.
            self._found[key] = of, price(*args, **kwargs)
        priced: T = self._found[key][1]
        return priced
