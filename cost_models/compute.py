"""Time of operators on one device: matrix multiplication, grouped matrix multiplication, attention, vector work.

Every function takes scalars or arrays (candidate first) and returns seconds as a float64 array. A roofline bounds each
operator from below; measured shapes bend it with few parameters of physical meaning.

Parameters
----------
head_dim : mean width of attention's products [elements].
seq : length of the sequence that a kernel sees [tokens].
rows, columns : queries and keys of one attention [elements].
heads : query heads of the rank [heads].
qk_dim, v_dim : width of a query and key, of a value [elements].
flops : of one attention pass, both products.
backward : the backward pass, not the forward pass.
moved_bytes : read and written by vector operators, together.
operators : vector operators, each with the fixed cost `vector_op_s` [count].
elements : of an operand that is cast to 8 bits [elements].
whole_rows : one kernel permutes whole rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number


# Waves of a matrix multiplication.
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


@dataclass(frozen=True, slots=True)
class ComputeRates:
    """Rates of one device. Numbers may be arrays (candidate first), so that a fit can vary them.

    peak_flops : matrix (cube, tensor core) peak in the run's number format [FLOP/s].
    wide_peak_flops : that of 16 bits, in which attention and the output head stay when linear layers run in 8; None:
        the same.
    hbm_bytes_per_s : datasheet bandwidth of device memory [B/s].
    gemm_fraction : of the peak, for an endless matrix multiplication [fraction].
    gemm_k_half, gemm_mn_half : the depth and the width at which half the rate is lost [elements].
    gemm_units : matrix units whose waves count; 0 where the kernels of the device are not known to run in waves
        [units].
    grouped_gemm : rate of a grouped matrix multiplication against plain ones of its groups' shape [fraction].
    grouped_gemm_exposed : share of the time to store its results that a grouped multiplication does not hide
        [fraction].
    gemm_added_exposed : share of the time by which adding a result to a wider sum in memory exceeds writing it, that a
        multiplication does not hide [fraction].
    operand_fraction : of hbm_bytes_per_s, at which matrix kernels stream operands and results [fraction].
    attention_forward, attention_backward : of the peak, at head dimension 128 and long sequences [fraction].
    attention_head_dim_half : saturation in the head dimension [elements].
    attention_seq_half : saturation in the sequence [tokens].
    hbm_fraction : of hbm_bytes_per_s, for streaming vector operators [fraction].
    movement_fraction : of hbm_bytes_per_s, for gather and scatter (permute, unpermute, concatenation) [fraction].
    whole_rows_fraction : of hbm_bytes_per_s, for kernels that permute whole rows; None: movement_fraction [fraction].
    cube_op_s, vector_op_s : fixed cost of one operator [s].
    element_bytes : of an element that the run computes in: 2, in FP32 runs 4 [B].
    casts_weights : weights are cast to 8 bits in every product, not once a step.
    cube_cores : matrix cores that share the output tiles of one operator [cores].
    pipelined_tiles : a core fills and drains its tiles beside the multiplication of the tile before.
    """

    peak_flops: Number
    hbm_bytes_per_s: Number
    gemm_fraction: Number
    gemm_k_half: Number
    gemm_mn_half: Number
    grouped_gemm: Number
    attention_forward: Number
    attention_backward: Number
    attention_head_dim_half: Number
    attention_seq_half: Number
    hbm_fraction: Number
    movement_fraction: Number
    cube_op_s: Number
    vector_op_s: Number
    grouped_gemm_exposed: Number = 0.0
    gemm_added_exposed: Number = 0.0
    operand_fraction: Number = 1.0
    whole_rows_fraction: Number | None = None
    cube_cores: float = 1.0
    pipelined_tiles: bool = False
    gemm_units: float = 0.0
    wide_peak_flops: Number | None = None
    element_bytes: float = 2.0
    casts_weights: bool = False

    @property
    def widening(self) -> Number:
        """Speed of the run's number format against 16 bits (ratio)."""
        return 1.0 if self.wide_peak_flops is None else np.asarray(self.peak_flops) / self.wide_peak_flops

    @property
    def quantised(self) -> bool:
        """Whether operands of linear layers are cast to a narrower format before each product."""
        return self.wide_peak_flops is not None

    @property
    def operand_bytes(self) -> float:
        """Of an element that a linear layer multiplies."""
        return 1.0 if self.quantised else self.element_bytes

    def wide(self) -> ComputeRates:
        """The rates of products that stay in 16 bits."""
        return (
            self
            if self.wide_peak_flops is None
            else replace(self, peak_flops=self.wide_peak_flops, wide_peak_flops=None)
        )


# Output tile of one matrix core: what FP32 sums fill its accumulator of 128 KiB. Source: CANN platform_config, l0c.
TILE_ROWS, TILE_COLUMNS = 128.0, 256.0


def exposed_depth(m: Number, n: Number, rates: ComputeRates, *, groups: Number = 1.0) -> Floats:
    """Depth of a matrix multiplication that its tiles lose to filling and draining [elements].

    Notes
    -----
    k_half is what one tile loses: its first operands travel to the core, its sums travel back, and the core waits.
    With two operand buffers and sums that leave while the next tile is multiplied, a core waits at its first tile
    only: k_half over the tiles that it works through, groups * (m / 128) (n / 256) / cores and no less than one.
    k_half is of 16 bits: the wait is a time, so a format that multiplies faster loses more depth.
    """
    half = np.asarray(rates.gemm_k_half, dtype=np.float64) * rates.widening
    if not rates.pipelined_tiles:
        return np.asarray(half)
    tiles = groups * np.maximum(m / TILE_ROWS, 1.0) * np.maximum(n / TILE_COLUMNS, 1.0)
    return np.asarray(half / np.maximum(tiles / rates.cube_cores, 1.0))


def gemm_efficiency(m: Number, n: Number, k: Number, rates: ComputeRates, *, groups: Number = 1.0) -> Floats:
    """Fraction of the matrix peak that C[m, n] = A[m, k] B[k, n] reaches.

    Notes
    -----
    eff = fraction / (1 + k_half / k + mn_half / m + mn_half / n). Each output tile pays a prologue and an epilogue
    that do not depend on k, hence k_half (`exposed_depth`); partly filled tiles at the edges pay for the whole, hence
    mn_half. `groups` products of this shape share the cores.

    References
    ----------
    Four shapes measured on Ascend 910B2C (BF16, mamf-finder, 2024-11-01), 272.6 to 317.3 TFLOPS: within 1 %.
    """
    depth = exposed_depth(m, n, rates, groups=groups)
    return np.asarray(rates.gemm_fraction / (1.0 + depth / k + rates.gemm_mn_half * (1.0 / m + 1.0 / n)))


def _efficiency(m: Number, n: Number, k: Number, rates: ComputeRates, groups: Number) -> Floats:
    """Fraction of the matrix peak of one of `groups` equal products: in whole waves of tiles where they are counted."""
    if rates.gemm_units:
        half = rates.gemm_k_half * np.asarray(rates.widening)
        return rates.gemm_fraction * tiled_efficiency(m, n, k, half, rates.gemm_units, groups=groups)
    return gemm_efficiency(m, n, k, rates, groups=groups)


ADDED_BYTES = 8.0  # moved for an element of a product that is added into an FP32 sum: read and written


def gemm_s(
    m: Number, n: Number, k: Number, rates: ComputeRates, *, groups: Number = 1.0, result_bytes: Number | None = None
) -> Floats:
    """Seconds of one matrix multiplication (GEMM): roofline of matrix and memory rate, plus the operator's fixed cost.

    Where waves are counted (`gemm_units`), whole tiles are, and edges don't count again. Operands are read and the
    result is written once, in the run's format. Source: the roofline model, Williams, Waterman, Patterson, 2009. What
    more there is to move for a result that is added into a wider sum is not all hidden (`_added_s`).

    Parameters
    ----------
    groups : equal products in the same operator, whose tiles share the cores; the time is that of one of them, and
        still holds the whole fixed cost: g of them take g (time - cube_op_s) + cube_op_s.
    result_bytes : moved for an element of the result: ADDED_BYTES, or by default one of the run's format.
    """
    matrix_s = 2.0 * m * n * k / (rates.peak_flops * _efficiency(m, n, k, rates, groups))
    bound_s = np.maximum(matrix_s, _operands_s(m, n, k, rates, result_bytes))
    return np.asarray(bound_s + _added_s(m, n, rates, result_bytes, matrix_s) + rates.cube_op_s)


def _added_s(m: Number, n: Number, rates: ComputeRates, result_bytes: Number | None, matrix_s: Number) -> Floats:
    """Seconds by which adding a result into a wider sum lengthens its product.

    A tile's sums leave when they are complete. `gemm_k_half` holds what a tile of the run's own format waits for it,
    and a share of what is moved beyond that comes on top.

    References
    ----------
    Gradients of weights against the same product forward, BF16 into FP32: 61 shapes on A100, 144 on B200, SimuMax
    v1.2, configs/system (`gemm_added_exposed` of the profiles).
    """
    beyond = np.maximum(_result_bytes(rates, result_bytes) - rates.element_bytes, 0.0)
    return np.asarray(rates.gemm_added_exposed * np.minimum(matrix_s, _streamed_s(beyond * m * n, rates)))


def _operands_s(m: Number, n: Number, k: Number, rates: ComputeRates, result_bytes: Number | None) -> Floats:
    """Seconds to read both operands of a product and to write its result [s]."""
    return _streamed_s(rates.operand_bytes * (m * k + k * n) + _result_bytes(rates, result_bytes) * m * n, rates)


def _streamed_s(moved_bytes: Number, rates: ComputeRates) -> Floats:
    """Seconds of a matrix kernel's memory traffic [s]."""
    return np.asarray(moved_bytes / (rates.hbm_bytes_per_s * rates.operand_fraction))


def _result_bytes(rates: ComputeRates, given: Number | None) -> Number:
    return rates.element_bytes if given is None else given


def grouped_gemm_s(
    groups: Number,
    m: Number,
    n: Number,
    k: Number,
    rates: ComputeRates,
    *,
    fused: bool | npt.NDArray[np.bool_] = True,
    uneven_depth: bool = False,
    result_bytes: Number | None = None,
) -> Floats:
    """Seconds of a grouped GEMM, `groups` multiplications of m rows each: the experts of one rank.

    Fused, they are one operator with one fixed cost; apart, each is an operator of its own. The weights of all groups
    are read whatever m is: few tokens per expert make the operator memory-bound. An expert without tokens (m = 0) costs
    that reading; sizes are kept above 0 only so that no efficiency divides by them.

    Parameters
    ----------
    groups : products. m, n, k : rows, columns, depth of each [elements].
    uneven_depth : groups differ in their depth k, as the gradients of weights do; else in their rows m.
    result_bytes : moved for an element of the result, as of `gemm_s`.

    Notes
    -----
    Each product runs at the plain rate of its shape: the gradient of a weight has the tokens as its depth. Three things
    are of groups alone, the last of fused ones, and vanish for one group:

    - the last tile of 128 rows of every group is partly filled, half of it on average: (1 - 1 / groups) 64 rows more;
    - operands are loaded ahead, but a tile's sums can be stored, or added to those in memory, only when they are
      complete, and small groups have few tiles to go on with: a share x of that time is not hidden,
      max(matrix, memory) + (1 - 1 / groups) x min(matrix, results);
    - the rate `grouped_gemm` of the kernel, 1 where nothing says otherwise.

    With many rows a group the memory time is small beside the matrix time, and the plain multiplication is met.

    References
    ----------
    The roofline model, as `gemm_s`. Memory end: 32 groups of 32 to 80 rows on Ascend 910B, 0.93 of the datasheet
    bandwidth (FlagGems, pull request 6325). Tiles: TILE_ROWS. x is of the hardware profile.
    """
    m, n, k = (np.maximum(size, 1e-9) for size in (m, n, k))
    together = np.where(fused, groups, 1.0)
    others = 1.0 - 1.0 / np.maximum(groups, 1.0)
    rate = np.where(together > 1.0, rates.grouped_gemm, 1.0)
    tiled = m if uneven_depth or rates.gemm_units else m + 0.5 * TILE_ROWS * others
    matrix_s = 2.0 * tiled * n * k / (rates.peak_flops * _efficiency(tiled, n, k, rates, together) * rate)
    memory_s = _operands_s(m, n, k, rates, result_bytes)
    results_s = _streamed_s(_result_bytes(rates, result_bytes) * m * n, rates)
    exposed = rates.grouped_gemm_exposed * others * np.minimum(matrix_s, results_s)
    exposed = exposed + (1.0 - others) * _added_s(m, n, rates, result_bytes, matrix_s)
    seconds = groups * (np.maximum(matrix_s, memory_s) + exposed)
    return np.asarray(seconds + rates.cube_op_s * np.where(fused, 1.0, groups))


def attention_saturation(head_dim: Number, seq: Number, rates: ComputeRates) -> Floats:
    """Share of the long-sequence rate at head dimension 128 that flash attention keeps at this shape (fraction).

    The softmax runs on vector units per score, whatever the head dimension: d / (d + d_half) relative to d = 128.
    Short sequences leave blocks of the causal triangle partly filled: s / (s + s_half).
    Source: the shape of the curves of FlashAttention-2, arXiv:2307.08691, figures 4 to 7 (head dimension 64 and 128,
    512 to 16k tokens); d_half and s_half are of the hardware profile.
    """
    reference = 128.0 / (128.0 + np.asarray(rates.attention_head_dim_half))
    return np.asarray(
        (head_dim / (head_dim + np.asarray(rates.attention_head_dim_half)) / reference)
        * (seq / (seq + np.asarray(rates.attention_seq_half)))
    )


def attention_flops(rows: Number, columns: Number, heads: Number, qk_dim: Number, v_dim: Number) -> Floats:
    """FLOPs of flash attention forward: Q K^T and P V over the rows x columns scores that are really computed.

    4 s^2 d a without a mask, half of it under a causal one: FlashAttention-2, arXiv:2307.08691, section 4.1.
    """
    return np.asarray(2.0 * rows * columns * heads * (np.asarray(qk_dim) + v_dim))


def attention_backward_flops(rows: Number, columns: Number, heads: Number, qk_dim: Number, v_dim: Number) -> Floats:
    """FLOPs of flash attention backward: scores again, gradients of Q and K as wide as they, those of P and V as V.

    References
    ----------
    FlashAttention-2, arXiv:2307.08691, section 3: five matrix products backward against two forward.
    """
    return np.asarray(2.0 * rows * columns * heads * (3.0 * np.asarray(qk_dim) + 2.0 * np.asarray(v_dim)))


def attention_s(flops: Number, head_dim: Number, seq: Number, rates: ComputeRates, *, backward: bool) -> Floats:
    """Seconds of a flash attention pass that computes `flops`; `head_dim` is the mean width of its products [elements].

    Bound by the matrix units: scores never leave the core (FlashAttention, arXiv:2205.14135).
    """
    fraction = rates.attention_backward if backward else rates.attention_forward
    return np.asarray(
        flops / (rates.peak_flops * fraction * attention_saturation(head_dim, seq, rates)) + rates.cube_op_s
    )


def vector_s(moved_bytes: Number, operators: Number, rates: ComputeRates) -> Floats:
    """Seconds of streaming vector operators that read and write `moved_bytes` of device memory in all.

    The memory side of the roofline model, as `gemm_s`: a few operations a byte never reach the vector units' peak.
    """
    return np.asarray(moved_bytes / (rates.hbm_bytes_per_s * rates.hbm_fraction) + operators * rates.vector_op_s)


def cast_s(elements: Number, rates: ComputeRates) -> Floats:
    """Seconds to cast an operand from 16 to 8 bits, with a transposed copy for the other product that needs it.

    Reads 2 B an element and writes 1 + 1 B, in one kernel; nothing where linear layers run in 16 bits. Weights are cast
    once a step and left out. Source: Transformer Engine, cast_transpose: 8-bit products of Hopper take operands in one
    orientation only.
    """
    if not rates.quantised:
        return np.zeros(1)
    return np.asarray(4.0 * elements / (rates.hbm_bytes_per_s * rates.hbm_fraction) + rates.cube_op_s)


def weight_cast_s(elements: Number, rates: ComputeRates, *, backward: bool) -> Floats:
    """Seconds to cast a weight of `elements` from 16 to 8 bits for one product, 0 where the casts of a step are kept.

    Dynamic scaling by tensor reads the weight for its maximum (2 B an element), reads it again (2 B) and writes it
    (1 B); the product with the output's gradient takes another orientation, scaled already (2 + 1 B).

    Parameters
    ----------
    elements : of the weight (count). rates : of the device. backward : for the gradient of the input.

    References
    ----------
    torchao, testing/training/roofline_utils.py, get_tensor_memory_traffic_ovhd_s: tensorwise, weight.
    """
    if not (rates.quantised and rates.casts_weights):
        return np.zeros(1)
    moved, kernels = (3.0, 1.0) if backward else (5.0, 2.0)
    memory = rates.hbm_bytes_per_s * rates.hbm_fraction
    return np.asarray(moved * elements / memory + kernels * np.asarray(rates.cube_op_s))


def movement_s(
    moved_bytes: Number, operators: Number, rates: ComputeRates, *, whole_rows: bool | npt.NDArray[np.bool_] = False
) -> Floats:
    """Seconds of gather and scatter: rows move by index, so device memory streams below its streaming rate.

    The share of the bandwidth is of the hardware profile: 0.188 on A100 in SimuMax's system files. One kernel that
    permutes whole rows may reach more (`whole_rows_fraction`).
    """
    whole = rates.movement_fraction if rates.whole_rows_fraction is None else rates.whole_rows_fraction
    fraction = np.where(whole_rows, whole, rates.movement_fraction)
    return np.asarray(moved_bytes / (rates.hbm_bytes_per_s * fraction) + operators * rates.vector_op_s)
