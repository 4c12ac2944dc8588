"""Optimizers as records: what they hold of a parameter, and what their update runs; the rest asks these, never names.

Muon: momentum of a matrix, orthogonalised by Newton-Schulz iterations (arXiv 2502.16982, section 2). With X [m, n], m
the shorter side, an iteration is A = X X^T, B = b A + c A A, X = a X + B X: 4 m^2 n + 2 m^3 FLOPs, in 16 bits. Bytes:
the polynomial of A as operators (14 an element of A: b A 4, c A A 4, their sum 6), a X and its sum with the product
(4 + 6 an element of X). Source: MindSpeed @028de58c core/optimizer/muon, muon_utils.py and orthogonalized_optimizer.py.

Parameters
----------
rows, columns : of a matrix on a rank.
matrices : that a rank holds, of a stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from cost_models.compute import ComputeRates, gemm_s, vector_s

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cost_models.arrays import Floats, Number

    MatrixSeconds: TypeAlias = Callable[[Number, Number, ComputeRates], Floats]

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


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A rule that turns gradients into updates of weights.

    Parameters
    ----------
    name : as specs say it; a feature of this name says how it is launched.
    moments : what it keeps of a parameter beside the FP32 copy [B].
    update : moved as operators, for each parameter, beside `matrix_s`; 0: it is one operator [B].
    matrix_s : seconds to update one matrix of (rows, columns, rates), which a rank owns whole; embedding, head and
        norms keep Adam's states. None: it works element by element.
    precisions : number formats that it is modelled in. tunes : it is modelled for adapters and fine-tuning too.
    """

    name: str
    moments: float
    update: float = 0.0
    matrix_s: MatrixSeconds | None = None
    precisions: tuple[str, ...] = ("bf16", "fp16", "fp32", "fp8")
    tunes: bool = True


ADAM: Final = Optimizer("adam", moments=8.0)
# One FP32 momentum; MindSpeed @028de58c core/optimizer/muon.
MUON: Final = Optimizer("muon", 4.0, ELEMENT_BYTES, newton_schulz_s, precisions=("bf16",), tunes=False)
OPTIMIZERS: Final = {each.name: each for each in (ADAM, MUON)}


def optimizer_among(names: Collection[str]) -> Optimizer:
    """The optimizer that features name; Adam where they name none."""
    return next((each for each in OPTIMIZERS.values() if each.name in names), ADAM)
