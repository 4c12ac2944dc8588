"""Waves of a matrix multiplication: output tiles run on the device's matrix units a few at a time, and the last few
leave units idle.

A unit computes one tile of the output; all units together compute a wave. 109 tiles on 108 units take as long as 216.
Where that wastes much, the library takes smaller tiles or cuts the depth into slices that run as tiles of their own.

Parameters
----------
k_half : depth at which half the rate is lost [elements].
units : matrix units of the device [units].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number

# Rows, columns [elements] and rate (fraction) of the tiles that a library chooses from. A product in a smaller tile
# reads more operands: 1 / 128 + 1 / 128 elements against 1 / 256 + 1 / 128, a third more.
# Source: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantization, for the sizes
# and for larger tiles being faster. That a third more operands cost 5 % of the rate is assumed: no source gives it.
TILES = ((256.0, 128.0, 1.0), (128.0, 256.0, 1.0), (128.0, 128.0, 0.95))
# Slices of the depth that are tried (count): more leave each too shallow for k_half. Assumed; source of the idea below.
SLICES = (1, 2, 3, 4, 6, 8)


def tiled_efficiency(m: Number, n: Number, k: Number, k_half: Number, units: float, *, groups: Number = 1.0) -> Floats:
    """Efficiency under wave quantization: share of an endless multiplication's rate that whole waves of tiles reach.

    groups : equal products in one operator (a batch): their tiles fill waves together, so that only the last wave of
        them all leaves units idle.

    Notes
    -----
    A tile takes as long as its depth and k_half more: it fills its pipeline and writes its output. Cut into s slices
    of k / s, the depth makes s times as many tiles, and each pays k_half. The fastest choice counts, as the library's
    heuristic would have it: groups m n k / min(waves x units x tile / rate x (k / s + k_half)).

    References
    ----------
    NVIDIA, Matrix Multiplication Background User's Guide: wave quantization of A100's 108 multiprocessors with tiles
    of 256 x 128. Split-K: NVIDIA CUTLASS, "Efficient GEMM in CUDA", parallelized reductions.
    """
    m, n, k = (np.asarray(size, dtype=np.float64) for size in (m, n, k))
    slices = np.reshape(SLICES, (-1, *[1] * np.broadcast(m, n, k, k_half, groups).ndim))
    depth = k / slices + k_half
    best: Number = np.inf
    for rows, columns, rate in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / columns)
        waves = np.ceil(groups * tiles * slices / units)
        best = np.minimum(best, (waves * units * rows * columns / rate * depth).min(axis=0))
    return np.asarray(groups * m * n * k / best)
