"""A matrix multiplication cut into chunks that run beside its collective: what the chunks themselves cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import overlapped_s
from cost_models.gemm_waves import tiled_efficiency

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number
    from cost_models.compute import ComputeRates


def tile_loss(m: Number, n: Number, k: Number, chunks: Number, rates: ComputeRates) -> Floats:
    """Time of C[m, n] = A[m, k] B[k, n] in `chunks` pieces of its rows against the whole, at least 1.

    Notes
    -----
    Fewer rows are fewer output tiles: the last wave of each piece leaves matrix cores idle, once a piece instead of
    once. Both are in whole waves of the best tiles on the device's cores (`gemm_waves.tiled_efficiency`).
    """
    half, cores = rates.gemm_k_half, rates.cube_cores
    whole = tiled_efficiency(m, n, k, half, cores)
    piece = tiled_efficiency(np.asarray(m) / chunks, n, k, half, cores)
    return np.asarray(np.maximum(whole / piece, 1.0))


def chunked_s(
    compute_s: Number,
    communication_s: Number,
    chunks: Number,
    *,
    loss: Number,
    contention: Number,
    collective_s: Number,
    copies_s: Number = 0.0,
) -> Floats:
    """Seconds of a multiplication overlapped with its collective in `chunks` (CoC, MC2), at most those of both in turn.

    Parameters
    ----------
    loss : `tile_loss` of the multiplication [ratio].
    contention : a collective beside computation takes this much longer [ratio].
    collective_s : fixed cost of one collective; every chunk is one.
    copies_s : rows brought into the order that the chunks leave or need.

    Notes
    -----
    max(C, N) (c - 1) / c + (C + N) / c with C and N of the chunks: the first chunk of one of the two stands alone, and
    the last of the other. Frameworks leave a shape whole where chunks would be slower (MindSpeed customized_coc_dict).
    """
    compute_s, communication_s = np.asarray(compute_s), np.asarray(communication_s)
    beside = communication_s * contention + (np.asarray(chunks) - 1.0) * collective_s
    together = overlapped_s(compute_s * loss, beside, chunks) + copies_s
    return np.asarray(np.minimum(together, compute_s + communication_s))
