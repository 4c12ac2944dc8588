"""A matrix multiplication cut into chunks that run beside its collective: what the chunks themselves cost."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import overlapped_s
from cost_models.compute import tiled_efficiency

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number
    from cost_models.compute import ComputeRates

REMEMBERED_SIZE = 256  # entries of an array


def tile_loss(m: Number, n: Number, k: Number, chunks: Number, rates: ComputeRates) -> Floats:
    """Time of C[m, n] = A[m, k] B[k, n] in `chunks` pieces of its rows against the whole, at least 1.

    Notes
    -----
    Fewer rows are fewer output tiles: the last wave of each piece leaves matrix cores idle, once a piece instead of
    once. Both are in whole waves of the best tiles on the device's cores (`gemm_waves.tiled_efficiency`).
    """
    sizes = [np.asarray(size, dtype=np.float64) for size in (m, n, k, chunks, rates.gemm_k_half)]
    if max(size.size for size in sizes) > REMEMBERED_SIZE:
        m, n, k, chunks, half = sizes
        return _tile_loss(m, n, k, chunks, half, rates.cube_cores)
    return _remembered_tile_loss(tuple((size.shape, size.tobytes()) for size in sizes), rates.cube_cores)


def _tile_loss(m: Floats, n: Floats, k: Floats, chunks: Floats, half: Floats, cores: float) -> Floats:
    whole = tiled_efficiency(m, n, k, half, cores)
    piece = tiled_efficiency(m / chunks, n, k, half, cores)
    return np.asarray(np.maximum(whole / piece, 1.0))


@lru_cache(maxsize=1024)
def _remembered_tile_loss(sizes: tuple[tuple[tuple[int, ...], bytes], ...], cores: float) -> Floats:
    """A search asks the same of a few products many times: in every pass, world and space beside its own."""
    m, n, k, chunks, half = (np.frombuffer(values).reshape(shape) for shape, values in sizes)
    loss = _tile_loss(m, n, k, chunks, half, cores)
    loss.setflags(write=False)
    return loss


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
