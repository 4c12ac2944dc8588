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
