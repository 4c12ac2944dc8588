"""Opens everything a process needs: the database, the planner and, in a server, the runner."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.ablation.ablate import ablate
from autodeploy.errors import SpecError
from autodeploy.jobs.embedded import EmbeddedRunner
from autodeploy.jobs.planning import PLANNER, Planner, load_planner
from autodeploy.services.cluster_overlays import with_overlay
from autodeploy.services.runs import RunService
from autodeploy.services.searches import SearchService
from autodeploy.store.database import Database
from autodeploy.store.migrate import is_current, require_current, upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autodeploy.jobs.runner import JobRunner
    from autodeploy.settings import Settings
    from autodeploy.specs.ablation import AblationReport
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


@dataclass(frozen=True, slots=True)
class Services:
    """The services of one process."""

    settings: Settings
    database: Database
    planner: Planner
    runner: JobRunner | None
    searches: SearchService
    runs: RunService

    def estimate(self, spec: Spec) -> Plan:
        """Predicts the one strategy of the spec; nothing is stored.

        Raises
        ------
        SpecError
            when the spec has no strategy, or it cannot be run.
        """
        if spec.strategy is None:
            raise SpecError(
                "an estimate needs the strategy to predict", path="/strategy", hint="strategy: {tp: 8, pp: 4}"
            )
        return self.planner.estimate(self._with_overlay(spec))

    def ablate(self, spec: Spec, order: Sequence[str] = ()) -> AblationReport:
        """What each feature of the spec's strategy buys, or of its best plan's; nothing is stored.

        Raises
        ------
        SpecError
            when no plan fits, or `order` names a feature that the strategy does not use.
        """
        return ablate(self._with_overlay(spec), order=order)

    def _with_overlay(self, spec: Spec) -> Spec:
        with self.database.read() as session:
            return with_overlay(session, spec)

    def is_ready(self) -> dict[str, bool]:
        """What has to be true for requests to be answered: the database, its revision, the runner."""
        reachable = self.database.ping()
        return {
            "database": reachable,
            "migrations": reachable and is_current(self.database),
            "jobs": self.runner is None or self.runner.is_alive(),
        }


@contextmanager
def open_services(settings: Settings, *, with_runner: bool = False, planner: str = PLANNER) -> Iterator[Services]:
    """The services, closed at the end of the block; running searches go back to the queue.

    An SQLite file is brought to the newest revision, being this program's own; PostgreSQL is migrated on purpose.

    Parameters
    ----------
    with_runner : whether this process runs queued searches.
    planner : the module with the planner's functions.

    Raises
    ------
    ConflictError
        when PostgreSQL is at another revision.
    """
    if settings.jobs != "embedded":
        raise SpecError(
            f"{settings.jobs} is not built into this version",
            path="AUTODEPLOY_JOBS",
            hint="AUTODEPLOY_JOBS=embedded; several servers may share one PostgreSQL database",
        )
    database = Database(settings.database_url)
    try:
        if database.is_sqlite:
            upgrade(database)
        else:
            require_current(database)
        loaded = load_planner(planner)
        runner = EmbeddedRunner(database, settings, planner=planner) if with_runner else None
        searches = SearchService(database, loaded, runner, settings)
        runs = RunService(database, loaded, searches.plan)
        if runner is not None:
            runner.start()
        try:
            yield Services(settings, database, loaded, runner, searches, runs)
        finally:
            if runner is not None:
                runner.stop()
    finally:
        database.close()
