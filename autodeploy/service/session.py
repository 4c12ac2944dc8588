"""Opens everything a process needs: the database, the planner and, in a server, the runner."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from autodeploy.analysis.launch_requests import refuse_illegal
from autodeploy.analysis.questions import Questions
from autodeploy.analysis.rehearsal.rehearse import rehearse
from autodeploy.formats import registry as exporters
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.reports.commissioning import rule_of
from autodeploy.reports.comparison import rehearsal_lines
from autodeploy.reports.run_outcome import told
from autodeploy.service import calls
from autodeploy.service.batches import BatchService
from autodeploy.service.clusters.calibration import StoredRun, refit
from autodeploy.service.clusters.commissioning import commission
from autodeploy.service.clusters.overlays import with_overlay
from autodeploy.service.requests.callers import ANYONE, AccessService, AuditLog, Principal
from autodeploy.service.runner.ahead import QUIET_S, AskedAhead
from autodeploy.service.runner.call_pool import CallPool, KeptAnswers
from autodeploy.service.runner.embedded import EmbeddedRunner
from autodeploy.service.runner.owner import Owner
from autodeploy.service.runner.planning import PLANNER, load_planner
from autodeploy.service.runner.processes import NICENESS as SEARCH_NICENESS
from autodeploy.service.runner.workers import WorkerHeartbeat, Workers
from autodeploy.service.runs.service import RunService
from autodeploy.service.searches.service import SearchService
from autodeploy.service.store.base import now_in
from autodeploy.service.store.migration import is_current, ready_database
from autodeploy.service.store.retention import Housekeeper
from autodeploy.service.store.searches import Searches
from autodeploy.service.webhooks.service import WebhookService
from autodeploy.specs.artefact import with_remarks
from autodeploy.specs.planset import SearchInfo, plan_set_of_one
from autodeploy.specs.resources import iso
from autodeploy.specs.spec import Spec, spec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from autodeploy.analysis.rehearsal.rehearse import Rehearsal
    from autodeploy.kit.settings import Settings
    from autodeploy.messages import Language
    from autodeploy.search.planner import Planner
    from autodeploy.service.runner.ahead import Question
    from autodeploy.service.runner.runner import JobRunner
    from autodeploy.service.runner.workers import WorkerView
    from autodeploy.service.searches.views import PlanView
    from autodeploy.service.store.database import Database
    from autodeploy.specs.answers import StrategyBounds
    from autodeploy.specs.artefact import Artefact
    from autodeploy.specs.commissioning import Commissioning
    from autodeploy.specs.measured_run import MeasuredRun
    from autodeploy.specs.plan_details import OperatorReport, PipelineTimeline
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.resources import RunOutcomeDocument
    from autodeploy.specs.strategy import Strategy


# Of the process that takes searches; each search has one more, and so has the queue.
WORKER_CONNECTIONS = 1
KEPT_ANSWERS = 512  # each a plan of some 20 KiB, or a line or two for some thirty strategies

P = ParamSpec("P")
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Services(Questions):
    """The services of one process; `for_caller` gives them as one caller may use them."""

    settings: Settings
    database: Database
    planner: Planner
    runner: JobRunner | None
    searches: SearchService
    runs: RunService
    batches: BatchService
    webhooks: WebhookService
    access: AccessService
    call_pool: CallPool | None
    readers: CallPool | None
    searchers: CallPool | None
    planner_module: str
    principal: Principal = ANYONE
    kept: KeptAnswers = field(default_factory=lambda: KeptAnswers(KEPT_ANSWERS), repr=False)
    """Refusals of targets and changed plans."""
    ahead: AskedAhead | None = None
    """Changed plans that may be asked for next; None where they are not computed ahead."""

    def for_caller(self, principal: Principal) -> Services:
        """The same services; what another team has is not there."""
        searches = self.searches.for_caller(principal)
        return replace(
            self,
            searches=searches,
            runs=self.runs.for_caller(principal, searches.plan),
            batches=BatchService(self.database, searches, principal),
            principal=principal,
        )

    @property
    def audit(self) -> AuditLog:
        """Audit log of callers' actions."""
        return AuditLog(self.database)

    def make_ready(self) -> None:
        """Starts the processes that compute for requests, so that the first of these waits for none."""
        if self.call_pool is not None:
            self.call_pool.make_ready(calls.make_ready, self.planner_module)
        if self.readers is not None:
            self.readers.make_ready(calls.make_ready_to_read)

    def operators(self, view: PlanView) -> OperatorReport:
        """Time of a stored plan, down to the operators of each kind of layer."""
        spec = spec_of(view.plan_set.search)
        return self._call(self.planner.operators, spec, view.plan)

    def stages(self, view: PlanView) -> PipelineTimeline:
        """Time of each stage of a stored plan's pipeline in all, without its slots."""
        spec = spec_of(view.plan_set.search)
        return self._call(self.planner.timeline, spec, view.plan.strategy, slots=False)

    def strategy_bounds(self, spec: Spec, most: int) -> StrategyBounds:
        """At most so many strategies of a search at their bounds; nothing is stored."""
        return self._call(self.planner.strategy_bounds, spec, most)

    def rules_broken(self, spec: Spec, strategies: Sequence[Strategy]) -> list[tuple[str, ...]]:
        """Refusals of each strategy by the spec's target, in words; none of those that it can launch.

        Remembered: pages of the same plans are opened again and again.
        """
        asked = (spec.model_dump_json(), tuple(each.model_dump_json() for each in strategies))
        make = partial(self._call, calls.rules_broken, self.planner, spec, tuple(strategies))
        return self.kept.answer(asked, make)

    def _one_search(self) -> AbstractContextManager[None]:
        team = self.principal.team if self.principal.key_id else ""
        return nullcontext() if self.searchers is None else self.searchers.search_of(team)

    def _call_searcher(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Answer of a search: one at a time for each team, where no prediction waits for it."""
        return self._call_in(self.searchers, function, *args, **kwargs)

    def _refuse_enormous(self, spec: Spec) -> None:
        self.planner.check_space(spec)

    def _call(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """In a server another process computes, with a time limit; elsewhere this one."""
        return self._call_in(self.call_pool, function, *args, **kwargs)

    def _call_in(
        self, pool: CallPool | None, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs
    ) -> Answer:
        if pool is None:
            return function(*args, **kwargs)
        return pool.call_of(self.principal.key_id, function, *args, **kwargs)

    def read(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Result of a reader of a text of the caller's: in a server in a process for that, limited as predictions are.

        The documents of others never wait for a prediction, nor does a prediction for them.
        """
        return self._call_in(self.readers, function, *args, **kwargs)

    def stored(self, plan_id: str) -> tuple[PlanSet, Plan]:
        """A plan by its id, with the newest PlanSet of the caller's that holds it."""
        view = self.searches.plan(plan_id)
        return view.plan_set, view.plan

    def planned_before(self, spec: Spec) -> PlanSet | None:
        """The newest answer to an equal spec, by this engine and these profiles."""
        return self.searches.planned_before(spec)

    def changed(self, view: PlanView, spec: Spec, strategy: Strategy) -> Plan:
        """The plan of a stored plan's strategy and spec as they were changed; nothing is stored.

        Remembered, as changes are turned back and sent to others. Errors as `why_not`, and SpecError when no plan has
        what was changed.
        """
        (question,) = self._questions(view, spec, (strategy,))
        asked, function, arguments = question
        plan: Plan = self.kept.answer(asked, partial(self._call, function, *arguments))
        return plan

    def ask_ahead(self, view: PlanView, name: str, spec: Spec, strategies: Iterable[Strategy]) -> None:
        """Has what `changed` would answer computed while nobody waits, of so many strategies as there is time for.

        name : of where they start from: the set of the same name is not begun anew.
        """
        if self.ahead is not None:
            self.ahead.ask((view.plan.plan_id, name), self._questions(view, spec, strategies))

    def _questions(self, view: PlanView, spec: Spec, strategies: Iterable[Strategy]) -> Iterator[Question]:
        """Of each strategy, in turn, what its answer is kept by, and the call that makes it."""
        best = view.plan_set if spec == spec_of(view.plan_set.search) else None
        spec = self._with_overlay(spec)
        known, text = "" if best is None else best.search.id, spec.model_dump_json()
        for strategy in strategies:
            asked = (text, strategy.model_dump_json(exclude_unset=True), known)
            yield asked, partial(self.planner.complete, best=best), (spec, strategy)

    def _with_overlay(self, spec: Spec) -> Spec:
        with self.database.read() as session:
            return with_overlay(session, spec, self.principal.team)

    def export(self, view: PlanView, to: str, lang: Language = "en", *, rehearse: str | None = None) -> Artefact:
        """A stored plan in a format of `exporters`; the pipeline is simulated where the format shows it.

        lang : of documents for people.
        rehearse : "1node", "8nodes" or so: not the plan but its rehearsal there, which says what differs.

        Raises SpecError when there is no such format, the framework can't launch the plan, or it has no such rehearsal.
        """
        if rehearse is not None:
            return self._rehearsal(view, to, lang, rehearse)
        return self._written(view.plan_set, view.plan, to, lang)

    def export_strategy(self, spec: Spec, to: str, lang: Language = "en") -> Artefact:
        """The strategy of a spec in a format of `exporters`, estimated as it is given; nothing is stored.

        Raises SpecError as `estimate` and `export`.
        """
        plan, (_, profile, engine) = self.estimate(spec), self.planner.describe_hashes(spec)
        made = {"profile_hash": profile, "engine_version": engine, "created_at": iso(self.database.now())}
        search = SearchInfo(id="", spec={}, spec_hash="", **made)
        return self._written(plan_set_of_one(search, spec, plan, spec.search.objective), plan, to, lang)

    def _written(self, plan_set: PlanSet, plan: Plan, to: str, lang: Language = "en") -> Artefact:
        spec = spec_of(plan_set.search)
        refuse_illegal(plan_set, plan, to, lambda judged: self._call(self.planner.launch_rules, judged))
        return exporters.export(
            plan_set,
            plan,
            to,
            timeline=partial(self._call, self.planner.timeline, spec, plan.strategy),
            lang=lang,
        )

    def script(self, view: PlanView, spec: Spec, plan: Plan, to: str) -> Artefact:
        """The launch file of an estimate beside a stored plan, which is stored nowhere.

        Raises SpecError when the framework can't launch it.
        """
        return self._written(plan_set_of_one(view.plan_set.search, spec, plan, spec.search.objective), plan, to)

    def add_run(self, plan_id: str, measured: MeasuredRun, *, rehearse: str | None = None) -> RunOutcomeDocument:
        """Links a measurement to a plan, or to its rehearsal on so many nodes, and says how that moves the plan.

        Errors as `RunService.add` and `autodeploy.analysis.rehearsal.rehearse`.
        """
        view = self.searches.plan(plan_id)
        rehearsed = None if rehearse is None else self.rehearsal(view, rehearse)
        outcome = self.runs.add(plan_id, measured, rehearsal=rehearsed)
        said = outcome.run.measured_step_time_s is not None or outcome.run.measured.out_of_memory is not None
        if outcome.cluster is not None and said:
            moved = self._call(calls.moved_plan, view.plan_set, view.plan, outcome.cluster, self.planner)
            outcome = outcome.model_copy(update={"moved": moved})
        return outcome.model_copy(update={"told": str.__str__(told(outcome))})

    def launched(self, view: PlanView, rehearse: str | None) -> Plan:
        """The plan whose log is followed: a stored plan, or its rehearsal on so many nodes."""
        return view.plan if rehearse is None else self.rehearsal(view, rehearse).plan

    def rehearsal(self, view: PlanView, nodes: str) -> Rehearsal:
        """The rehearsal of a stored plan; errors as `autodeploy.analysis.rehearsal.rehearse`."""
        return self._call(rehearse, view.plan_set, view.plan, nodes, self.planner)

    def commission(self, view: PlanView) -> Commissioning:
        """The launches before a stored plan's own; errors as `autodeploy.service.clusters.commissioning.commission`."""
        known = self.runs.that_calibrate(spec_of(view.plan_set.search).cluster)
        return self._call(commission, view.plan_set, view.plan, [StoredRun.of(run) for run in known], self.planner)

    def _rehearsal(self, view: PlanView, to: str, lang: Language, nodes: str) -> Artefact:
        rehearsed = self.rehearsal(view, nodes)
        artefact = self._written(rehearsed.plan_set, rehearsed.plan, to, lang)
        remarks = rehearsal_lines(rehearsed.of, rehearsed.plan, rehearsed.changed, rehearsed.layer_s)
        return with_remarks(artefact, (*remarks, rule_of(rehearsed.plan)), f"rehearsal_{nodes}")

    def is_ready(self) -> dict[str, bool]:
        """Conditions of answers to requests: the database, its revision, the runner.

        And what else a service needs to be whole: somebody who takes searches, a database that accepts writes.
        """
        reachable = self.database.ping()
        current = reachable and is_current(self.database)
        return {
            "database": reachable,
            "migrations": current,
            "jobs": self.runner is None or self.runner.is_alive(),
            "workers": current and bool(self.live_workers()),
            "writes": current and not self.database.refuses_writes,
        }

    def queue_age_s(self) -> float:
        """Seconds since the search was asked for that has waited longest; 0 where none waits."""
        with self.database.read() as session:
            asked_at = Searches(session).oldest_queued_at()
        return 0.0 if asked_at is None else max(0.0, (now_in(session) - asked_at).total_seconds())

    def live_workers(self) -> list[WorkerView]:
        """Processes that take searches and looked for them lately."""
        with self.database.read() as session:
            return Workers(session).live(now_in(session), self.settings.worker_alive_s)


@contextmanager
def open_services(
    settings: Settings,
    *,
    with_runner: bool = False,
    as_worker: bool = False,
    planner: str = PLANNER,
    database: Database | None = None,
) -> Iterator[Services]:
    """The services, closed at the end of the block; running searches go back to the queue.

    An SQLite file is brought to the newest revision, being this program's own; PostgreSQL is migrated on purpose.

    with_runner : whether this process answers for queued searches: runs them (embedded) or sends them to workers.
    as_worker : whether it is such a worker.
    planner : the module with the planner's functions.
    database : that of the settings where it is open and ready already; closed at the end too.

    Raises ConflictError when PostgreSQL is at another revision; SpecError when a worker is asked for that the settings
    have no use for.
    """
    if as_worker and settings.jobs != "procrastinate":
        raise SpecError(
            Message("services.worker_needs_jobs"),
            path="AUTODEPLOY_JOBS",
            hint=Message("services.set_jobs_setting"),
        )
    if database is None:
        connections = WORKER_CONNECTIONS if as_worker else settings.database_connections
        database = ready_database(settings.database_url, connections)
    try:
        runner = _runner(database, settings, planner, with_runner=with_runner, as_worker=as_worker)
        services = _services(settings, database, runner, planner, with_pools=with_runner)
        webhooks, housekeeper = services.webhooks, Housekeeper(database, settings)
        if runner is not None:
            runner.start()
            webhooks.start()
            if not as_worker:
                housekeeper.start()
        try:
            yield services
        finally:
            housekeeper.stop()
            webhooks.stop()
            for pool in (services.ahead, services.call_pool, services.readers, services.searchers):
                if pool is not None:
                    pool.close()
            if runner is not None:
                runner.stop()
    finally:
        database.close()


def _services(
    settings: Settings, database: Database, runner: JobRunner | None, planner: str, *, with_pools: bool
) -> Services:
    """The services of a process; with pools others compute, read and search for it."""
    loaded, one = load_planner(planner), settings.model_copy(update={"call_processes": 1})
    searches, kept, ahead = SearchService(database, loaded, runner, settings), KeptAnswers(KEPT_ANSWERS), None
    call_pool = CallPool(settings, planner) if with_pools else None
    searchers = None if call_pool is None else CallPool(one, planner, call_pool.tally, SEARCH_NICENESS)
    if call_pool is not None and settings.ask_ahead:
        ahead = AskedAhead(settings, planner, kept, lambda: call_pool.idle_s < QUIET_S)
    # Forty predictions a run: elsewhere than the server's own process.
    fitted = partial(refit, planner=loaded)
    fit = fitted if searchers is None else lambda *runs: searchers.call(fitted, *runs)
    return Services(
        settings,
        database,
        loaded,
        runner,
        searches,
        runs=RunService(database, fit, searches.plan),
        batches=BatchService(database, searches),
        webhooks=WebhookService(database, settings),
        access=AccessService(database),
        call_pool=call_pool,
        readers=CallPool(one, planner) if with_pools else None,
        searchers=searchers,
        planner_module=planner,
        kept=kept,
        ahead=ahead,
    )


def _runner(
    database: Database, settings: Settings, planner: str, *, with_runner: bool, as_worker: bool
) -> JobRunner | None:
    if settings.jobs == "procrastinate":
        # ImportResult here: procrastinate is installed with the extra `postgres`.
        from autodeploy.service.runner.distributed import JobSendingRunner, WorkerRunner

        if as_worker:
            return WorkerRunner(database, settings, planner=planner)
        return JobSendingRunner(WorkerHeartbeat(database, settings, Owner()) if with_runner else None)
    return EmbeddedRunner(database, settings, planner=planner) if with_runner else None
