"""Types of arrays and numbers that formulas take and give."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[Any]  # whole numbers, of which many formulas are fastest as floats
Number = Floats | float


def product(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """Sum over the last axis of `a` [..., i] and the first of `b` [i] or [i, k], added in one order on every processor.

    `a @ b` calls a kernel of the processor it runs on: last bits, and with them answers, would depend on the machine.
    """
    right = np.asarray(b)
    return np.asarray(np.einsum("...i,i->..." if right.ndim == 1 else "...i,ik->...k", np.asarray(a), right))
