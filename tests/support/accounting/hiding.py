"""What hides a message of a tensor-parallel region: a gradient beside it, or pieces of its own product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account

Hide = Callable[[float], float]


def behind(a: Account, seconds: float) -> Hide:
    """A collective beside a gradient takes longer, and only what is left of it shows; whole where there is none."""
    if not seconds:
        return lambda t: t
    return lambda t: max(0.0, a.machine.contention * t - seconds)


def returned(a: Account, product: str) -> tuple[Hide, Hide]:
    """What hides an input's gradient that is scattered, or reduced: the weight's gradient, but in plain PyTorch, where
    pieces of the input's own gradient may (asynchronous tensor parallelism).
    """
    of = a.operators[product]
    if "torch_fsdp2" not in a.run.on:
        return behind(a, of.busy[2]), behind(a, of.busy[2])
    m, n, k = a.shapes[product]
    pieces = [chunked(a, of.busy[1], (m, k, n), copied, of=product) for copied in ((m * k, m * n), ())]
    return pieces[0], pieces[1]


def _chunks(a: Account, shape: tuple[float, float, float]) -> int:
    """Pieces of a multiplication that overlap with its collective."""
    if a.d.tp == 1:
        return 1
    if {"mc2", "coc_kernel"} & set(a.run.on):
        m, n, k = shape
        # 10 Gi products and 128 rows of each rank at least, 16 pieces at most.
        sized = max(1, min(16, math.floor(m * n * k / (10 * 2**30)), math.floor(m / (128 * a.d.tp))))
        return sized if a.d.sequence_parallel or "mc2" not in a.run.on else 1
    return 4 if "coc" in a.run.on else 1


def chunked(
    a: Account, work: float, shape: tuple[float, float, float], copied: tuple[float, ...] = (), *, of: str = ""
) -> Hide:
    """A message beside the pieces of a product of this shape; CoC copies so many elements before or after.

    Each piece fills the cores with its own tiles, and its message is one of its own. Shapes that lose stay whole.
    """
    c = _chunks(a, shape)
    if c == 1 or of in a.run.lora_targets:  # products with an adapter run in kernels of their own
        return lambda t: t
    m, n, k = shape
    whole, piece = (a.machine.rounds(rows, n, k) for rows in (m, m / c))
    slower = work * max(1.0, c * piece / whole)
    places = {"mc2", "coc_kernel"} & set(a.run.on)  # rows where the framework has them
    again = 0.0 if places else sum(a.machine.stream(2 * 2 * size, 1) for size in copied)

    def shows(t: float) -> float:
        beside = t * a.machine.contention + (c - 1) * a.machine.comm_op_s
        return min(t, max(slower, beside) * (c - 1) / c + (slower + beside) / c + again - work)

    return shows
