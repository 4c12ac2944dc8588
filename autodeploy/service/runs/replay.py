"""Every stored run predicted once more by this release: the errors before and after, as a gate for an upgrade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.kit.errors import AutoDeployError
from autodeploy.service.store.plan_rows import read_plan
from autodeploy.service.store.runs import Runs
from autodeploy.specs.spec import Spec
from hardware_profiles.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.search.planner import Planner
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.tables import RunRow

READ_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A run, and its plan as it was predicted and as this release predicts it, on the numbers of its stored spec.

    Errors are of throughput as in the ledger, measured / predicted - 1, and of the allocator's peak, predicted /
    measured - 1; None where the run did not measure it or nothing is predicted. `refused`: why this release predicts
    nothing.
    """

    id: str
    plan_id: str
    cluster: str
    model: str
    engine_version: str
    measured_s: float | None
    before_s: float
    after_s: float | None
    error_before: float | None
    error_after: float | None
    memory_error_before: float | None
    memory_error_after: float | None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Replay:
    """The runs, newest first. Means are of absolute errors, of runs that have one before and after; None without."""

    runs: tuple[ReplayedRun, ...]

    @property
    def mean_before(self) -> float | None:
        """Mean absolute error of the throughput as it was predicted."""
        return self._mean([run.error_before for run in self._timed])

    @property
    def mean_after(self) -> float | None:
        """Mean absolute error of the throughput as this release predicts it."""
        return self._mean([run.error_after for run in self._timed])

    @property
    def _timed(self) -> list[ReplayedRun]:
        return [run for run in self.runs if run.error_before is not None and run.error_after is not None]

    @staticmethod
    def _mean(errors: list[float | None]) -> float | None:
        return sum(abs(error or 0.0) for error in errors) / len(errors) if errors else None

    def worse(self, allowed: float) -> tuple[ReplayedRun, ...]:
        """Runs that can't be predicted any more, or whose absolute error, of time or memory, grew by more than this."""
        return tuple(run for run in self.runs if run.refused or _growth(run) > allowed)

    def passes(self, allowed_mean: float, allowed_run: float) -> bool:
        """Whether the mean grew by at most `allowed_mean` and no run's error by more than `allowed_run`."""
        before, after = self.mean_before, self.mean_after
        grown = after - before if before is not None and after is not None else 0.0
        return grown <= allowed_mean and not self.worse(allowed_run)


def replay(database: Database, planner: Planner, *, cluster: str | None = None) -> Replay:
    """All stored runs, or those of a cluster, under this release.

    A spec is taken as it was stored, its overlay included, so that what moves a prediction is the product and its
    profiles.
    """
    return Replay(tuple(_replayed(row, planner) for row in _rows(database, cluster)))


def _rows(database: Database, cluster: str | None) -> Iterator[RunRow]:
    after: str | None = None
    while True:
        with database.read() as session:
            rows = Runs(session).page(cluster=cluster, limit=READ_AT_ONCE, after=after)
            session.expunge_all()
        yield from rows
        if len(rows) < READ_AT_ONCE:
            return
        after = rows[-1].id


def _replayed(row: RunRow, planner: Planner) -> ReplayedRun:
    refused, after_s, after_gib = "", None, None
    try:
        again = planner.reestimate(Spec.model_validate(row.spec), read_plan(row.plan))
        after_s, after_gib = again.step_time_s, again.allocator_peak_gib
    except (AutoDeployError, ProfileError, ValueError) as error:
        refused = str(error).splitlines()[0][:200]
    measured_s, peak = row.step_time_s, row.peak_memory_gib
    return ReplayedRun(
        id=row.id,
        plan_id=row.plan_id,
        cluster=row.cluster,
        model=row.model_name,
        engine_version=row.engine_version,
        measured_s=measured_s,
        before_s=row.predicted_step_time_s,
        after_s=after_s,
        error_before=None if measured_s is None else measured_s / row.predicted_step_time_s - 1.0,
        error_after=None if measured_s is None or after_s is None else measured_s / after_s - 1.0,
        memory_error_before=None if peak is None else row.predicted_memory_gib / peak - 1.0,
        memory_error_after=None if peak is None or after_gib is None else after_gib / peak - 1.0,
        refused=refused,
    )


def _growth(run: ReplayedRun) -> float:
    pairs = ((run.error_before, run.error_after), (run.memory_error_before, run.memory_error_after))
    return max((abs(b) - abs(a) for a, b in pairs if a is not None and b is not None), default=0.0)
