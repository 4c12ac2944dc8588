"""Reading one candidate's entry of an array."""

from __future__ import annotations

import numpy as np


def at(values: object, index: int) -> float:
    """Entry `index` of an array [n], or the one value that holds for all candidates."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0:
        return float(array)
    return float(array[0] if array.shape[0] == 1 else array[index])
