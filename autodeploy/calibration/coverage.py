"""The table that calibration writes: what every record ran, and how far the model was off on it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hardware_profiles.loader import list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats

Found = TypeVar("Found")

# Of a strategy, in rows of the table and in runs that are compared with them.
RUN_AXES = ("tp", "pp", "vpp", "cp", "ep", "etp", "micro_batch_size", "schedule", "moe_dispatcher")
_COMPARED = ("ranks", "ep", "cp", "pp", "seq_length", "tp")  # to find the record that ran most alike


# The shipped table, then those in place of it, each with what was looked up in it; the last one is in use.
TABLES: list[tuple[Mapping[str, Any], dict[Hashable, Any]]] = []


def coverage() -> Mapping[str, Any]:
    """Residual spread per family and class, and what each record ran."""
    return _in_use()[0]


def looked_up(key: Hashable, find: Callable[[Mapping[str, Any]], Found]) -> Found:
    """What is found in the table in use, once for each key."""
    rows, values = _in_use()
    if key not in values:
        values[key] = find(rows)
    value: Found = values[key]
    return value


def _in_use() -> tuple[Mapping[str, Any], dict[Hashable, Any]]:
    if not TABLES:
        text = files("autodeploy.calibration").joinpath("coverage.json").read_text(encoding="utf-8")
        TABLES.append((json.loads(text), {}))
    return TABLES[-1]


def carried_from(family: str) -> str | None:
    """The family whose errors the predictions of this one are given, as a profile of it says; None where none does."""
    documents = (load_profile(name, calibrated=False).document for name in list_profiles())
    return next((d.calibration.spread_of for d in documents if d.family == family and d.calibration.spread_of), None)


def run_in_context(candidate: Candidates, context: Context, features: Iterable[str]) -> dict[str, Any]:
    """A candidate as the rows of the table are."""
    return run_of_axes(
        candidate.axes_at(0),
        moe=context.model.is_moe,
        ranks=context.world,
        node_ranks=context.node_ranks,
        seq_length=context.seq_length,
        features=features,
    )


def run_of_axes(
    axes: Mapping[str, Any], *, moe: bool, ranks: int, node_ranks: int, seq_length: int, features: Iterable[str]
) -> dict[str, Any]:
    """A run as the rows of the table are; `axes`: of its strategy."""
    return {
        "moe": moe,
        "ranks": ranks,
        "shares_node": shares_node(ranks, int(axes["tp"]), node_ranks),
        "seq_length": seq_length,
        "features": sorted(features),
        **{axis: axes[axis] for axis in RUN_AXES},
    }


def shares_node(ranks: int, tp: int, ranks_per_node: int) -> bool:
    """Whether several tensor-parallel groups share a node of a run on several nodes."""
    return ranks > ranks_per_node > tp


class Neighbours:
    """Rows in the order of their names, and how unlike a run each of them ran."""

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.rows = tuple(sorted(records, key=lambda row: str(row["id"])))
        self._logs = np.log2([[row[axis] for axis in _COMPARED] for row in self.rows]).reshape(-1, len(_COMPARED))
        self._moe = np.array([bool(row["moe"]) for row in self.rows], dtype=bool)
        self._makers = np.array([row["vendor_family"] for row in self.rows], dtype=object)
        self._families = np.array([row["family"] for row in self.rows], dtype=object)

    def distances(self, family: str, run: Mapping[str, Any]) -> Floats:
        """Same family and class first, then the least sum of |log2 ratio| over axes [records]."""
        far = np.abs(self._logs - np.log2([run[axis] for axis in _COMPARED])).sum(axis=1)
        far += 4.0 * (self._moe != run["moe"]) + 6.0 * (self._makers != family.split("-")[0])
        return np.asarray(far + 2.0 * (self._families != family), dtype=np.float64)


def nearest_record(family: str, run: Mapping[str, Any]) -> str | None:
    """The record that ran most alike, in words."""
    neighbours = looked_up("neighbours", lambda table: Neighbours(table["records"]))
    return named(neighbours.rows[int(np.argmin(neighbours.distances(family, run)))]) if neighbours.rows else None


def named(row: Mapping[str, Any]) -> str:
    """A record of the table in words."""
    return f"{row['model']} on {row['npus']} {row['device']} ({row['id']})"
