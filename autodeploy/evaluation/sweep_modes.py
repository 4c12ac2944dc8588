"""What a mode of keeping optimizer states adds to runs: bytes of parameters' states, update, swapping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.sweep_template import FIRST, LAST, MIDDLE, of_class, places_of, plus

if TYPE_CHECKING:
    from autodeploy.evaluation.sweep_columns import Columns
    from autodeploy.evaluation.sweep_runs import Runs
    from autodeploy.workload.operators import Floats

UNLIKELY = 1e3  # factor on the estimate of candidates that are solved last


@dataclass(frozen=True)
class Tails:
    """What follows the pipeline on the stage where it takes longest, by part [n]; and a bound for any layout."""

    total_s: Floats
    exposed_dp_s: Floats
    optimizer_s: Floats | float
    exposed_swap_s: Floats | float
    moving_s: Floats | float
    floor_s: Floats


def tails_of(runs: Runs, mode: Columns) -> Tails:
    """The tails of runs under a mode."""
    update, swap = (_of_parameters(runs, mode, name) for name in ("update_s", "swap_s"))
    total = runs.tail_s
    for seconds in (runs.moving_s, update, swap):
        total = plus(total, seconds)
    most = np.maximum(np.maximum(total[:, FIRST], total[:, MIDDLE]), total[:, LAST])
    later = total[:, FIRST] != most
    places = places_of(later.astype(np.int64) + (later & (total[:, MIDDLE] != most)))

    def pick(values: Floats | None) -> Floats | float:
        return 0.0 if values is None else of_class(values, places)

    floor = mode["tail_s", "share"]
    return Tails(most, of_class(runs.tail_s, places), pick(update), pick(swap), pick(runs.moving_s), floor)


def _of_parameters(runs: Runs, mode: Columns, name: str) -> Floats | None:
    """What parameters of stages take [n, 3]; None for nothing."""
    total = None
    for params, kind in ((runs.dense_params, "dense"), (runs.expert_params, "expert")):
        rate = mode.get((name, kind))
        total = plus(total, None if rate is None else params * rate[:, None])
    return total


@dataclass(frozen=True)
class Bytes:
    """Allocator bytes of the fullest stage: nothing recomputed, everything recomputed, and of no layout less [n]."""

    plain: Floats
    lean: Floats
    least: Floats


def bytes_of(runs: Runs, mode: Columns, *, folded: bool) -> Bytes:
    """Memory of runs under a mode."""
    states = _of_parameters(runs, mode, "total_bytes")
    share = mode["total_bytes_folded" if folded else "total_bytes", "share"]
    return Bytes(
        plus(runs.bare_bytes, states).max(axis=1),
        plus(runs.lean_bytes, states).max(axis=1),
        share + runs.workspace_bytes,
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
