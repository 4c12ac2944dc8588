"""What published runs say of each axis and feature of a plan, and how much of an unproven gain to believe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.coverage import RUN_AXES, Neighbours, carried_from, coverage, named
from autodeploy.specs.planset import Evidence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

MAX_DEGREE_RATIO = 2.0  # a degree counts where a run's is no farther than this factor
OF_EXPERTS = frozenset({"ep", "etp", "moe_dispatcher"})
# What an axis says is used where this degree is above one: a schedule needs stages, a dispatcher ranks of experts.
USED_WITH = {"schedule": "pp", "moe_dispatcher": "ep"}
UNUSED_AT_ONE = frozenset({"tp", "pp", "vpp", "cp", "ep", "etp"})
FEATURE = "feature"


@dataclass(frozen=True, slots=True)
class Realised:
    """Of the predicted gain of features and degrees that no run has, the share that came true; its standard deviation.

    n : groups of runs that it was measured on; 0 where it is a prior. how : in words.
    """

    share: float
    sigma: float
    n: int
    how: str


# Nothing measured: any share from none to all is as likely.
NOTHING_KNOWN = Realised(0.5, 12.0**-0.5, 0, "no pairs of runs: uniform from 0 to 1")


def realised_share() -> Realised:
    """What the table of the records says, else the prior."""
    found = coverage().get("realised")
    return Realised(found["share"], found["sigma"], found["n"], found["how"]) if found else NOTHING_KNOWN


def evidence_of(run: Mapping[str, Any], family: str) -> tuple[Evidence, ...]:
    """What the timed runs of pre-training on chips of a family say of each axis and feature of a run.

    A run counts when it has the feature or the word, or the degree within a factor of two. What a run does not use (a
    degree of one, a schedule of one stage, a dispatcher of whole experts) needs no evidence: all runs count.

    Parameters
    ----------
    run : moe (bool), ranks, seq_length, features and the axes of a strategy, as the rows of the table.
    family : of the chips; those that share a fit count, and the family whose errors predictions take.
    """
    pool = _pool(family)
    far = pool.neighbours.distances(family.removesuffix("/own"), run)
    return tuple(pool.evidence(axis, value, far, used=used) for axis, value, used in _asked(run))


def unproven(run: Mapping[str, Any], family: str) -> frozenset[str]:
    """Names of what a run rests on, of which `evidence_of` has no run."""
    pool = _pool(family)
    return frozenset(
        named_by(axis, value) for axis, value, used in _asked(run) if not pool.marks_of(axis, value, used=used).any()
    )


def named_by(axis: str, value: int | str) -> str:
    """What names one thing that a run rests on: a degree its axis, a feature, schedule or dispatcher itself."""
    return axis if isinstance(value, int) else value


def _asked(run: Mapping[str, Any]) -> Iterator[tuple[str, int | str, bool]]:
    """Axes and features of a run with their values, and whether it uses them."""
    for axis in (*RUN_AXES, "ranks"):
        if run["moe"] or axis not in OF_EXPERTS:
            yield axis, run[axis], is_used(run, axis)
    for name in run["features"]:
        yield FEATURE, name, True


@dataclass
class _Pool:
    """The runs that count for a family, with what was asked of them before."""

    neighbours: Neighbours
    marks: dict[tuple[str, int | str], npt.NDArray[np.bool_]] = field(default_factory=dict)

    def evidence(self, axis: str, value: int | str, far: npt.NDArray[np.float64], *, used: bool) -> Evidence:
        """What the runs say of one axis or feature; `far`: how unlike the run each of them is."""
        marks = self.marks_of(axis, value, used=used)
        runs = int(marks.sum())
        if not len(far):
            return Evidence(axis=axis, value=value, runs=0)
        row = self.neighbours.rows[int(np.argmin(np.where(marks, far, np.inf) if runs else far))]
        left = row.get("left_out")
        error = None if left is None else round(float(np.expm1(left)), 4)
        return Evidence(axis=axis, value=value, runs=runs, nearest_record=named(row), error=error)

    def marks_of(self, axis: str, value: int | str, *, used: bool) -> npt.NDArray[np.bool_]:
        """Which runs count for an axis or feature: all for what a run doesn't use [runs]."""
        return self.having(axis, value) if used else np.ones(len(self.neighbours.rows), dtype=bool)

    def having(self, axis: str, value: int | str) -> npt.NDArray[np.bool_]:
        """Which runs have the feature or the word, or the degree within a factor of two [runs]."""
        key = (axis, value)
        if key not in self.marks:
            found = [counts(row, axis, value) for row in self.neighbours.rows]
            self.marks[key] = np.array(found, dtype=bool)
        return self.marks[key]


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


_LATEST: list[tuple[Mapping[str, Any], dict[str, _Pool]]] = []  # the table in use, with the pools made from it


def _pool(family: str) -> _Pool:
    table = coverage()
    if not _LATEST or _LATEST[-1][0] is not table:
        _LATEST[:] = [(table, {})]
    pools = _LATEST[-1][1]
    if family not in pools:
        pools[family] = _Pool(Neighbours(rows_of(table["records"], family.removesuffix("/own"))))
    return pools[family]


def rows_of(rows: Sequence[Mapping[str, Any]], family: str) -> list[Mapping[str, Any]]:
    """Rows of a family's chips, of those that share its fit, and of the family whose errors it is given."""
    fits = {row.get("fit", row["family"]) for row in rows if row["family"] == family} | {carried_from(family)}
    return [row for row in rows if row.get("fit", row["family"]) in fits]
