"""Published runs of each axis and feature of a plan and of its utilisation, and how much of an unproven gain
to believe.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from autodeploy.costs.prediction_spread import RUN_AXES, Neighbours, carried_from, coverage, looked_up, named
from autodeploy.specs.measurements import layout_read, profile_read
from autodeploy.specs.planset import Evidence, MeasuredMfu
from autodeploy.specs.record import Diagnoses
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from autodeploy.specs.rl import RlStrategy


T = TypeVar("T", bound=int | str)
MAX_DEGREE_RATIO = 2.0  # a degree counts where a run's is no farther than this factor
OF_EXPERTS = frozenset({"ep", "etp", "moe_dispatcher"})
# What an axis says is used where this degree is above one: a schedule needs stages, a dispatcher ranks of experts.
USED_WITH = {"schedule": "pp", "moe_dispatcher": "ep"}
AXES_SHOWN = (*RUN_AXES, "ranks")
UNUSED_AT_ONE = frozenset({"tp", "pp", "vpp", "cp", "ep", "etp"})
FEATURE = "feature"
LARGE_CLUSTER = 64  # cards from which runs are compared with large ones alone: utilisation falls with the size
FORMATS = {"fp16": "bf16"}  # of one rate


def realised_share() -> tuple[float, float]:
    """Of the predicted gain of features and degrees that no run has, the share that came true; its standard deviation.

    Where nothing was measured, any share from none to all is as likely.
    """
    realised = coverage().get("realised") or {"share": 0.5, "sigma": 12.0**-0.5}
    return realised["share"], realised["sigma"]


def evidence_of(run: Mapping[str, Any], family: str) -> tuple[Evidence, ...]:
    """Timed runs of pre-training on chips of a family, for each axis and feature of a run.

    A run counts when it has the feature or the word, or the degree within a factor of two. What a run does not use (a
    degree of one, a schedule of one stage, a dispatcher of whole experts) needs no evidence: all runs count.

    run : moe (bool), ranks, seq_length, features and the axes of a strategy, as the rows of the table.
    family : of the chips; those that share a fit count, and the family whose errors predictions take.
    """
    pool = _pool(family)
    far = pool.distances(family.removesuffix("/own"), run)
    return tuple(_evidence(pool, far, *each) for each in _shown(run, family))


def unproven(run: Mapping[str, Any], family: str) -> frozenset[str]:
    """Names of what a run rests on, of which `evidence_of` has no run."""
    return frozenset(named_by(axis, value) for axis, value, marks in _shown(run, family) if not marks.any())


def is_unproven(run: Mapping[str, Any], family: str, axis: str) -> bool:
    """True where a run uses an axis of AXES_SHOWN as no run does that `evidence_of` has."""
    if is_used(run, axis):
        return not _having(family, axis, run[axis]).any()
    return not len(_pool(family).rows) and (run["moe"] or axis not in OF_EXPERTS)


def proven_values(family: str, axis: str, values: Iterable[T]) -> list[T]:
    """The values of an axis, or the features, that a run on chips of the family has; degrees of one need none."""
    return [v for v in values if (axis in UNUSED_AT_ONE and v == 1) or _having(family, axis, v).any()]


def named_by(axis: str, value: int | str) -> str:
    """Name of one thing that a run rests on: a degree its axis, a feature, schedule or dispatcher itself."""
    return axis if isinstance(value, int) else value


def _shown(run: Mapping[str, Any], family: str) -> Iterator[tuple[str, int | str, npt.NDArray[np.bool_]]]:
    """Axes and features of a run with their values, and which runs of the family's pool count for each [runs]."""
    for axis in AXES_SHOWN:
        if is_used(run, axis):
            yield axis, run[axis], _having(family, axis, run[axis])
        elif run["moe"] or axis not in OF_EXPERTS:
            yield axis, run[axis], np.ones(len(_pool(family).rows), dtype=bool)
    for name in run["features"]:
        yield FEATURE, name, _having(family, FEATURE, name)


def _having(family: str, axis: str, value: int | str) -> npt.NDArray[np.bool_]:
    """Runs of the family's pool that have the feature or the word, or the degree within a factor of two [runs]."""
    rows = _pool(family).rows
    return looked_up((family, axis, value), lambda _: np.array([counts(r, axis, value) for r in rows], dtype=bool))


def _pool(family: str) -> Neighbours:
    """The runs that count for a family."""
    return looked_up(("pool", family), lambda t: Neighbours(rows_of(t["records"], family.removesuffix("/own"))))


def _evidence(
    pool: Neighbours, far: npt.NDArray[np.float64], axis: str, value: int | str, marks: npt.NDArray[np.bool_]
) -> Evidence:
    """Evidence of the runs on one axis or feature; `far`: how unlike the run each of them is."""
    runs = int(marks.sum())
    if not len(far):
        return Evidence(axis=axis, value=value, runs=0)
    row = pool.rows[int(np.argmin(np.where(marks, far, np.inf) if runs else far))]
    left = row.get("left_out")
    error = None if left is None else round(float(np.expm1(left)), 4)
    return Evidence(axis=axis, value=value, runs=runs, nearest_record=named(row), error=error)


def is_used(run: Mapping[str, Any], axis: str) -> bool:
    """Whether a run uses an axis: its degree, or that of the axis that it is used with, is above one."""
    return bool(run[USED_WITH.get(axis, axis)] > 1) and (run["moe"] or axis not in OF_EXPERTS)


def counts(row: Mapping[str, Any], axis: str, value: int | str) -> bool:
    """Whether a run counts for an axis or feature: it has it, or the degree within a factor of two, and uses it."""
    if axis == FEATURE:
        return value in row["features"]
    if axis in OF_EXPERTS and not row["moe"]:
        return False
    if isinstance(value, str):
        return bool(row[axis] == value and row[USED_WITH[axis]] > 1)
    near = 1.0 / MAX_DEGREE_RATIO <= row[axis] / value <= MAX_DEGREE_RATIO
    return bool(near and (row[axis] > 1 or axis not in UNUSED_AT_ONE))


def rows_of(rows: Sequence[Mapping[str, Any]], family: str) -> list[Mapping[str, Any]]:
    """Rows of a family's chips, of those that share its fit, and of the family whose errors it is given."""
    fits = {row.get("fit", row["family"]) for row in rows if row["family"] == family} | {carried_from(family)}
    return [row for row in rows if row.get("fit", row["family"]) in fits]


def highest_mfu(family: str, *, moe: bool, npus: int, precision: str) -> MeasuredMfu | None:
    """The record with the highest utilisation in the class of a run; None where the class has no record.

    Runs on 64 cards and more are compared with such runs alone, smaller ones with smaller ones.
    """
    alike = family, moe, npus >= LARGE_CLUSTER, FORMATS.get(precision, precision)

    def highest(table: Mapping[str, Any]) -> MeasuredMfu | None:
        rows = [row for row in table["records"] if row.get("mfu") is not None and _class_of(row) == alike]
        if not rows:
            return None
        best = max(rows, key=lambda row: (row["mfu"], row["id"]))
        return MeasuredMfu(highest=best["mfu"], runs=len(rows), record=named(best))

    return looked_up(("highest_mfu", *alike), highest)


def _class_of(row: Mapping[str, Any]) -> tuple[str, bool, bool, str]:
    precision = row.get("precision", "")
    return row["family"], row["moe"], int(row["npus"] or 1) >= LARGE_CLUSTER, FORMATS.get(precision, precision)


# What published runs say of where and how a plan generates.
GENERATION_FILE = "generation.jsonl"
RL_FILE = "rl.jsonl"
PLACEMENT = "rl.placement"
GENERATED = "rl.generation."
_ENGINE = ("precision", "engine", "tp", "ep")  # of an engine's layout


def evidence_of_generation(how: RlStrategy, family: str, *, moe: bool) -> tuple[Evidence, ...]:
    """Runs on a family's chips, and on those whose errors its predictions take, for placement and engine.

    Degrees count within a factor of two. A degree of one needs no evidence, and experts that every rank holds need
    none: all runs count. Serving counts for the engine, and not for where it stands beside training.
    """
    own = family.removesuffix("/own")
    families = {own, carried_from(own)}
    runs = [run for run in _published() if run["family"] in families]
    wanted = {PLACEMENT: how.placement, **{GENERATED + name: getattr(how.generation, name) for name in _ENGINE}}
    evidence = []
    for axis, value in wanted.items():
        of_experts = axis == f"{GENERATED}ep"
        if moe or not of_experts:
            alike = [run["id"] for run in runs if (run["moe"] or not of_experts) and _generates(run[axis], value)]
            nearest = alike[0] if alike else None
            evidence.append(Evidence(axis=axis, value=value, runs=len(alike), nearest_record=nearest))
    return tuple(evidence)


def _generates(own: int | str | None, value: int | str) -> bool:
    """Whether a run that generates with its own word or degree counts for another."""
    if isinstance(value, str) or not isinstance(own, int):
        return own == value
    return value == 1 or (own > 1 and 1.0 / MAX_DEGREE_RATIO <= own / value <= MAX_DEGREE_RATIO)


@cache
def _published() -> tuple[dict[str, Any], ...]:
    """All measurements that ship with the product, steps of post-training first; serving has no placement."""
    runs = []
    for name in (RL_FILE, GENERATION_FILE):
        text = files("autodeploy.calibration").joinpath("records", name).read_text(encoding="utf-8")
        for row in map(json.loads, text.splitlines()):
            how = row.get("strategy", {}).get("rl")
            layout = layout_read(how["generation"] if how else row["generation"], Diagnoses(), "/generation")
            profile = load_profile(profile_read(row["cluster"]["profile"], Diagnoses()), calibrated=False)
            run = {"id": row["id"], "family": profile.family, "moe": bool(row["model"].get("n_routed_experts"))}
            engine = {GENERATED + each: layout.get(each) or 1 for each in _ENGINE}
            runs.append({**run, PLACEMENT: how["placement"] if how else None, **engine})
    return tuple(runs)
