"""What a mode of keeping optimizer states adds to runs: bytes of parameters' states, update, swapping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.compiled import compiled
from cost_models.schedule import FIRST, LAST, MIDDLE

if TYPE_CHECKING:
    from autodeploy.evaluation.sweep.columns import Columns
    from autodeploy.evaluation.sweep.runs import Runs
    from cost_models.arrays import Floats

UNLIKELY = 1e3  # factor on the estimate of candidates that are solved last
REPAIRED_BY = ("norm", "activation", "mla_up_proj")
"""Choices of memory from the cheapest second a byte on."""


@dataclass(frozen=True)
class Tails:
    """What follows the pipeline on the stage where it takes longest, by part [n]; and a bound for any layout."""

    total_s: Floats
    exposed_dp_s: Floats
    optimizer_s: Floats
    exposed_swap_s: Floats
    moving_s: Floats
    floor_s: Floats


def tails_of(runs: Runs, mode: Columns) -> Tails:
    """The tails of runs under a mode."""
    tail = np.ascontiguousarray(runs.tail_s.T)
    moving = np.zeros_like(tail) if runs.moving_s is None else np.ascontiguousarray(runs.moving_s.T)
    rates = [_rate(mode, name, kind, tail.shape[1]) for name in ("update_s", "swap_s") for kind in ("dense", "expert")]
    return Tails(*_longest_tails(tail, moving, *_parameters(runs), *rates), mode["tail_s", "share"])


def _parameters(runs: Runs) -> tuple[Floats, Floats]:
    """Dense and expert parameters of the classes of stages [3, n]."""
    return np.ascontiguousarray(runs.dense_params.T), np.ascontiguousarray(runs.expert_params.T)


def _rate(mode: Columns, name: str, kind: str, n: int) -> Floats:
    """What one parameter of a kind takes [n]."""
    rate = mode.get((name, kind))
    return np.zeros(n) if rate is None else rate


@compiled
def _longest_tails(
    tail: Floats,
    moving: Floats,
    dense: Floats,
    expert: Floats,
    dense_update_s: Floats,
    expert_update_s: Floats,
    dense_swap_s: Floats,
    expert_swap_s: Floats,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Of the class of stages with the longest tail: all of it, synchronising, updating, swapping, moving [n].

    tail, moving [3, n] in seconds; dense, expert: parameters [3, n]; the others: seconds of one parameter [n].
    """
    n = tail.shape[1]
    most, synchronised, updated, swapped, moved = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for row in range(n):
        most[row] = -np.inf
        for stage in (FIRST, MIDDLE, LAST):
            update = dense[stage, row] * dense_update_s[row] + expert[stage, row] * expert_update_s[row]
            swap = dense[stage, row] * dense_swap_s[row] + expert[stage, row] * expert_swap_s[row]
            total = tail[stage, row] + moving[stage, row] + update + swap
            if total > most[row]:
                most[row], synchronised[row], moved[row] = total, tail[stage, row], moving[stage, row]
                updated[row], swapped[row] = update, swap
    return most, synchronised, updated, swapped, moved


@dataclass(frozen=True)
class Bytes:
    """Allocator bytes of the fullest stage: nothing recomputed, everything recomputed, and of no layout less [n]."""

    plain: Floats
    lean: Floats
    least: Floats


def bytes_of(runs: Runs, mode: Columns, *, folded: bool) -> Bytes:
    """Memory of runs under a mode."""
    bare, lean = (np.ascontiguousarray(each.T) for each in (runs.bare_bytes, runs.lean_bytes))
    dense, expert = (_rate(mode, "total_bytes", kind, bare.shape[1]) for kind in ("dense", "expert"))
    share = mode["total_bytes_folded" if folded else "total_bytes", "share"]
    return Bytes(*_fullest(bare, lean, *_parameters(runs), dense, expert), share + runs.workspace_bytes)


@compiled
def _fullest(
    bare: Floats, lean: Floats, dense: Floats, expert: Floats, dense_bytes: Floats, expert_bytes: Floats
) -> tuple[Floats, Floats]:
    """The most of bare and of lean bytes [3, n], with the states of parameters, on any class of stages [n]."""
    n = bare.shape[1]
    most_bare, most_lean = np.zeros(n), np.zeros(n)
    for row in range(n):
        for stage in (FIRST, MIDDLE, LAST):
            states = dense[stage, row] * dense_bytes[row] + expert[stage, row] * expert_bytes[row]
            most_bare[row] = max(most_bare[row], bare[stage, row] + states)
            most_lean[row] = max(most_lean[row], lean[stage, row] + states)
    return most_bare, most_lean


def repaired_s(runs: Runs, step_s: Floats, memory: Bytes, room: Floats, *, whole: bool) -> Floats:
    """Step time when the first stage recomputes just enough to fit: the order in which candidates are solved [n].

    Choices are taken from the cheapest second a byte on; where they do not free enough, whole layers are recomputed. A
    template that does not fit with everything recomputed leaves little hope for other layouts: those come last.
    Infinite where no layout fits. whole: a framework's flag holds for every stage.
    """
    saved, cost = zip(*(runs.repairs[name] for name in (*REPAIRED_BY, "full")), strict=True)
    return _repaired(step_s, memory.plain, memory.lean, memory.least, room, saved, cost, whole)


@compiled
def _repaired(
    step_s: Floats,
    plain: Floats,
    lean: Floats,
    least: Floats,
    room: Floats,
    saved: tuple[Floats, ...],
    cost: tuple[Floats, ...],
    whole: bool,
) -> Floats:
    """`repaired_s`; bytes saved and seconds added by each choice [n], that of whole layers last."""
    repaired = np.empty(len(step_s))
    for row in range(len(step_s)):
        if least[row] > room[row]:
            repaired[row] = np.inf
            continue
        need = missing = max(plain[row] - room[row], 0.0)
        extra = 0.0
        for choice in range(len(saved) - 1):
            used = min(need / max(saved[choice][row], 1.0), 1.0)
            extra += (np.ceil(used) if whole else used) * cost[choice][row]
            need = max(0.0, need - saved[choice][row])
        if need > 0.0:
            extra = cost[-1][row] * min(missing / max(saved[-1][row], 1.0), 1.0)
        repaired[row] = step_s[row] + extra
        if lean[row] > room[row]:
            repaired[row] *= UNLIKELY
    return repaired
