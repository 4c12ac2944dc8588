"""Muon in the accounting: every matrix of a rank orthogonalised in turn, whole matrices dealt to their owners.

MindSpeed core/optimizer/muon: Newton-Schulz on what a rank holds of a matrix, five times A = X X', B = b A + c A A,
X = a X + B X; owners get matrices in turn; embedding and head are one parameter each, and Adam's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.accounting.layer import Account
    from tests.support.accounting.ranks import Degrees
    from tests.support.accounting.run import Run

MOMENTUM = 4  # bytes of FP32


@dataclass(frozen=True)
class Matrix:
    """Equal matrices of one weight: of experts or not, their sides, how many."""

    group: str
    sides: tuple[float, float]
    count: float


def matrices(a: Account) -> list[Matrix]:
    """Of a layer's products; joined queries, keys and values apart, experts of one kernel in one array."""
    found: list[Matrix] = []
    for name, (n, k, groups) in a.weights.items():
        if name in ("output_proj", "stream_head_maps"):  # what belongs to the model's end is Adam's
            continue
        if name == "qkv_proj":
            r = a.run
            heads, keys = r.num_attention_heads, r.num_key_value_heads
            widths = [heads * r.head_dim, keys * r.head_dim, keys * r.value]
            found += [Matrix("dense", (n * width / sum(widths), k), 1) for width in widths]
        elif name.startswith("expert_"):
            if "grouped_gemm" in a.run.on and not a.run.group_launches:
                joined = (groups * n, k) if name == "expert_up_proj" else (n, groups * k)
                found.append(Matrix("edp", joined, 1))
            else:
                found.append(Matrix("edp", (n, k), groups))
        elif name == "output_down_proj":  # stored as one matrix of all groups of heads
            found.append(Matrix("dense", (groups * n, k), 1))
        else:
            found.append(Matrix("dense", (n, k), groups))
    return found


def orthogonal_s(a: Account, group: str) -> float:
    """Seconds to orthogonalise all of a group's matrices one after the other."""
    seconds = 0.0
    for matrix in matrices(a):
        if matrix.group != group:
            continue
        m, n = min(matrix.sides), max(matrix.sides)
        a_x_x, a_a, b_x = a.machine.gemm(m, m, n), a.machine.gemm(m, m, m), a.machine.gemm(m, n, m)
        # b A and c A A are written and read, and their sum; a X too.
        moved = (4 + 4 + 6) * m * m + (4 + 6) * m * n
        seconds += matrix.count * 5 * (a_x_x + a_a + b_x + a.machine.stream(moved, 5))
    return seconds


def update_bytes() -> int:
    """Of a parameter, beside the products."""
    momentum, nesterov = 3 * 4, 3 * 4
    norm, casts, scales = (4 + 4 + 4) + (4 + 4), (4 + 2) * 2, 2 * (4 + 4)
    decay, change, copy = 4 + 4, 3 * 4, 4 + 2
    return momentum + nesterov + norm + casts + scales + decay + change + copy


def busiest_share(run: Run, d: Degrees, layers: list[Account], ranks: int, group: str) -> float:
    """Of a mean stage's matrices, what the rank with most of them has."""
    if not run.distributed_optimizer:
        return 1.0
    whole = sum(matrix.count for a in layers for matrix in matrices(a) if matrix.group == group)
    stage = max(1, round(whole / d.pp))
    return math.ceil(stage / ranks) / stage
