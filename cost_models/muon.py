"""Muon: momentum of a matrix, orthogonalised by Newton-Schulz iterations (arXiv 2502.16982, section 2).

With X [m, n], m the shorter side, an iteration is A = X X^T, B = b A + c A A, X = a X + B X: 4 m^2 n + 2 m^3 FLOPs, in
16 bits. Bytes: the polynomial of A as operators (14 an element of A: b A 4, c A A 4, their sum 6), a X and its sum
with the product (4 + 6 an element of X). Source: MindSpeed @028de58c core/optimizer/muon, muon_utils.py and
orthogonalized_optimizer.py.

Parameters
----------
rows, columns : of a matrix on a rank.
matrices : that a rank holds, of a stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from cost_models.compute import ComputeRates, gemm_s, vector_s

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number

STEPS: Final = 5  # of the iteration, --muon-num-ns-steps
POLYNOMIAL_BYTES: Final = 14.0
ITERATE_BYTES: Final = 10.0
# Of a parameter besides the iterations, FP32 operators one by one: momentum (12) and Nesterov's sum (12), norm and
# quotient (20), casts to 16 bits and back (12), two scales (16), decay (8), the weight's change (12), its copy (6).
ELEMENT_BYTES: Final = 98.0


def newton_schulz_s(rows: Number, columns: Number, rates: ComputeRates, *, steps: float = STEPS) -> Floats:
    """Seconds to orthogonalise one matrix."""
    short, long = np.minimum(rows, columns), np.maximum(rows, columns)
    products = (
        gemm_s(short, short, long, rates) + gemm_s(short, short, short, rates) + gemm_s(short, long, short, rates)
    )
    moved = POLYNOMIAL_BYTES * short * short + ITERATE_BYTES * short * long
    return np.asarray(steps * (products + vector_s(moved, 5.0, rates)))


def owned_share(matrices: Number, ranks: Number) -> Floats:
    """Share of a stage's matrices that the busiest rank owns, of those that share them: whole ones, dealt in turn.

    ceil(M / R) / M. Source: MindSpeed @028de58c core/optimizer/muon/layer_wise_optimizer.py, shard_params: sorted by
    size and dealt back and forth.
    """
    count = np.maximum(1.0, np.rint(np.asarray(matrices, dtype=np.float64)))
    return np.asarray(np.ceil(count / np.maximum(1.0, ranks)) / count)
