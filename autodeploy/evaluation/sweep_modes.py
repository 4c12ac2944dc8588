"""What a mode of keeping optimizer states adds to runs: bytes of parameters' states, update, swapping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.sweep_columns import Columns, rates_of
from autodeploy.evaluation.sweep_template import FIRST, LAST, MIDDLE

if TYPE_CHECKING:
    from autodeploy.evaluation.sweep_runs import Runs
    from autodeploy.workload.operators import Floats

UNLIKELY = 1e3  # factor on the estimate of candidates that are solved last


@dataclass(frozen=True)
class Tails:
    """What follows the pipeline on the stage where it takes longest, by part [n]; and a bound for any layout."""

    total_s: Floats
    exposed_dp_s: Floats
    optimizer_s: Floats
    exposed_swap_s: Floats
    moving_s: Floats
    floor_s: Floats


def tails_of(runs: Runs, mode: Columns, pp: Floats) -> Tails:
    """The tails of runs under a mode."""
    update, swap = (_of_parameters(runs, mode, name) for name in ("update_s", "swap_s"))
    total = runs.tail_s + runs.moving_s + update + swap
    first, middle, last = total[:, FIRST], total[:, MIDDLE], total[:, LAST]
    most = np.maximum(np.maximum(first, middle), last)
    at_first = first == most
    at_middle = ~at_first & (middle == most)

    def pick(values: Floats) -> Floats:
        found = np.where(at_first, values[:, FIRST], values[:, LAST])
        np.copyto(found, values[:, MIDDLE], where=at_middle)
        return found

    return Tails(most, pick(runs.tail_s), pick(update), pick(swap), pick(runs.moving_s), mode["tail_s", "layers"] / pp)


def _of_parameters(runs: Runs, mode: Columns, name: str) -> Floats:
    dense, expert = rates_of(mode, name)
    return np.asarray(runs.dense_params * dense[:, None] + runs.expert_params * expert[:, None])


@dataclass(frozen=True)
class Bytes:
    """Allocator bytes of the fullest stage: nothing recomputed, everything recomputed, and of no layout less [n]."""

    plain: Floats
    lean: Floats
    least: Floats


def bytes_of(runs: Runs, mode: Columns, pp: Floats, *, folded: bool) -> Bytes:
    """Memory of runs under a mode."""
    states = _of_parameters(runs, mode, "total_bytes")
    everything = mode["total_bytes_folded" if folded else "total_bytes", "all"]
    return Bytes(
        (states + runs.bare_bytes).max(axis=1),
        (states + runs.lean_bytes).max(axis=1),
        everything / pp + runs.workspace_bytes,
    )


def repaired_s(runs: Runs, step_s: Floats, memory: Bytes, room: Floats, *, whole: bool) -> Floats:
    """Step time when the first stage recomputes just enough to fit: the order in which candidates are solved [n].

    Choices are taken from the cheapest second a byte on; where they do not free enough, whole layers are recomputed. A
    template that does not fit with everything recomputed leaves little hope for other layouts: those come last.
    Infinite where no layout fits. whole: a framework's flag holds for every stage.
    """
    need = missing = np.maximum(memory.plain - room, 0.0)
    if not missing.any():
        return np.where(memory.least > room, np.inf, step_s)
    extra = np.zeros(len(need))
    for name in ("norm", "activation", "mla_up_proj"):
        saved, cost = runs.repairs[name]
        used = np.minimum(need / np.maximum(saved, 1.0), 1.0)
        used = np.ceil(used) if whole else used
        extra += used * cost
        need = np.maximum(0.0, need - saved)
    saved, cost = runs.repairs["full"]
    share = np.minimum(missing / np.maximum(saved, 1.0), 1.0)
    repaired = step_s + np.where(need > 0.0, cost * share, extra)
    repaired = np.where(memory.lean > room, UNLIKELY * repaired, repaired)
    return np.where(memory.least > room, np.inf, repaired)
