"""Searches from the outside: submit, look at, list, cancel, delete, run here."""

from __future__ import annotations

import copy
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import IntegrityError

from autodeploy.analysis.intake import placed_in_spec, refuse_files
from autodeploy.kit.errors import ConflictError, LimitError, NotFoundError
from autodeploy.messages import Message, joined
from autodeploy.service.clusters.overlays import Freshness, Resting, with_overlay
from autodeploy.service.requests.callers import ANYONE, Principal
from autodeploy.service.runner.execution import execute
from autodeploy.service.runner.owner import Owner
from autodeploy.service.runner.runner import slot_rules
from autodeploy.service.runner.workers import Workers
from autodeploy.service.searches.submissions import (
    Admitted,
    Content,
    Submission,
    body_hash_of,
    check_annotations,
    expected_s,
    new_row,
    new_view,
    search_of_key,
    within_caps,
)
from autodeploy.service.searches.views import PlanView, QueueOutlook, SearchView, StoredPlan
from autodeploy.service.store.base import now_in
from autodeploy.service.store.events import STATUS, Deliveries, Events, IdempotencyKeys
from autodeploy.service.store.keys import ApiKeys
from autodeploy.service.store.plan_rows import Plans, plan_json
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.search_list import NEWEST, SearchFilter, page
from autodeploy.service.store.searches import LIST_COLUMNS, Searches
from autodeploy.specs.planset import FINISHED, Plan, plan_set_of_one
from autodeploy.specs.resources import SearchItem, SearchList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autodeploy.kit.settings import Settings
    from autodeploy.search.planner import Planner, Progress
    from autodeploy.service.runner.runner import JobRunner
    from autodeploy.service.store.database import Database, Session
    from autodeploy.service.store.events import Event
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec

EVERYWHERE = SearchFilter()


GIVEN = Message("services.estimated_alone")


class SearchService:
    """Every call is one transaction, or a few short ones that leave nothing half done.

    Scoped to a caller by `for_caller`: searches of teams that it cannot see behave as missing. Without it, on the
    command line and in a server that asks for no keys, all searches are there.
    """

    def __init__(self, database: Database, planner: Planner, runner: JobRunner | None, settings: Settings) -> None:
        self._database = database
        self._planner = planner
        self._runner = runner
        self._settings = settings
        self._freshness = Freshness(planner)
        self._principal = ANYONE
        runs_here = settings.jobs == "embedded" and runner is not None
        self._outlook = QueueOutlook(slot_rules(settings, runs_here=runs_here))

    def for_caller(self, principal: Principal) -> SearchService:
        """The same service as that caller may use it."""
        bound = copy.copy(self)
        bound._principal = principal
        return bound

    # -- begin -----------------------------------------------------------------------------------------------------

    def submit(
        self,
        spec: Spec,
        *,
        idempotency_key: str | None = None,
        tags: Iterable[str] = (),
        note: str = "",
        reuse: bool = True,
        webhook: str | None = None,
    ) -> Submission:
        """Queues a search; with `reuse` an equal spec that was planned before is answered at once.

        idempotency_key : the same key and spec of one caller give the same search, however often and fast they come.
        webhook : address to tell of the end, as `WebhookService.checked` gives it.

        Raises SpecError when the profile is unknown or a file, the space is enormous, it asks for more than the
        operator or the key allows, or the idempotency key was used for another spec; LimitError when as many searches
        of this caller wait or run as its key allows; an answer that is there counts nothing.
        """
        principal = self._principal
        admitted = self.admitted(spec, reuse=reuse)
        tags = check_annotations(tags, note)
        body_hash = body_hash_of(admitted.content, tags, note, webhook)
        try:
            with self._database.write() as session:
                before = self._search_of_key(session, principal.key_id, idempotency_key, body_hash)
                if before is None:
                    view = self.insert(session, admitted, tags, note, reuse=reuse, webhook=webhook)
                    if idempotency_key is not None:
                        IdempotencyKeys(session).add(
                            principal.key_id,
                            idempotency_key,
                            body_hash=body_hash,
                            search_id=view.id,
                            now=now_in(session),
                        )
        except IntegrityError:
            # Another process used the same key between our look and our insert: its search is the answer.
            with self._database.read() as session:
                before = self._search_of_key(session, principal.key_id, idempotency_key, body_hash)
            if before is None:
                raise
        if before is not None:
            return Submission(self.get(before), created=False)
        self.wake()
        if not view.is_finished:
            with self._database.read() as session:
                view = view.model_copy(update={"no_live_worker": not self._has_live_worker(session)})
        return Submission(view, created=True)

    def admitted(self, spec: Spec, *, reuse: bool = True) -> Admitted:
        """Spec of a document from the network, where it can be planned; `reuse` as in `submit`.

        Raises SpecError when the profile is unknown or a file, or the space is enormous.
        """
        refuse_files(spec)
        spec = within_caps(spec, self._settings, self._principal)
        with self._database.read() as session:
            spec = with_overlay(session, spec, self._principal.team)
            with placed_in_spec():
                content = Content(*self._planner.describe_hashes(spec))
            is_known = Searches(session).is_planned(*astuple(content), team=self._reusable_team)
        if not is_known:  # what was planned before can be planned
            with placed_in_spec():
                self._planner.check_space(spec)
        answered = is_known and reuse
        return Admitted(spec, content, None if answered else self._expected_s(spec))

    @property
    def _reusable_team(self) -> str | None:
        """The team whose results answer an equal spec; None: of any, which tells that somebody planned it."""
        return None if self._settings.share_results else self._principal.team

    def _expected_s(self, spec: Spec) -> float:
        return expected_s(self._planner.search_size(spec), spec.search)

    def wake(self, searches: int = 1) -> None:
        """Says that a transaction is committed that queued so many searches."""
        if self._runner is not None:
            for _ in range(searches):
                self._runner.wake()

    def plan_and_store(
        self,
        spec: Spec,
        *,
        tags: Iterable[str] = (),
        note: str = "",
        reuse: bool = False,
        progress: Callable[[Progress], None] | None = None,
        should_cancel: Callable[[], bool] | None = None,
    ) -> PlanSet:
        """Plans in this process, by the same code as a queued search, and stores the result.

        Raises SpecError when the profile is unknown or the spec asks for something that is not modelled;
        SearchCancelled when `should_cancel` stopped it before there was a plan.
        """
        with self._database.read() as session:
            spec = with_overlay(session, spec, self._principal.team)
        content = Content(*self._planner.describe_hashes(spec))
        tags = check_annotations(tags, note)
        admitted = Admitted(spec, content, self._expected_s(spec))
        with self._database.write() as session:
            view = self.insert(session, admitted, tags, note, reuse=reuse, enqueue=False)
            claim = Queue(session).claim(view.id, str(Owner()), now=now_in(session))
        if claim is None:  # an equal search had the answer
            return view.plan_set
        return execute(
            self._database,
            claim,
            self._planner,
            heartbeat_s=self._settings.heartbeat_s,
            progress=progress,
            should_cancel=should_cancel,
        )

    def planned_before(self, spec: Spec) -> PlanSet | None:
        """The newest answer to an equal spec, by this engine and these profiles; None where there is none.

        Raises SpecError when the profile is unknown.
        """
        with self._database.read() as session:
            spec = with_overlay(session, spec, self._principal.team)
            content = astuple(Content(*self._planner.describe_hashes(spec)))
            equal = Searches(session).reusable(*content, team=self._reusable_team)
        return None if equal is None else self.get(equal.id).plan_set

    def keep(self, of: PlanSet, spec: Spec, plan: Plan, *, note: str = "") -> PlanSet:
        """Stores a strategy that was estimated beside a plan as a search of its own, which no other search reuses.

        of : the PlanSet of the plan that it was changed from. plan : what was estimated for `spec`.

        Raises SpecError when the note is too long.
        """
        content = Content(*self._planner.describe_hashes(spec))
        check_annotations((), note)
        with self._database.write() as session:
            view = self.insert(session, Admitted(spec, content, None), (), note, reuse=False, enqueue=False)
            queue = Queue(session)
            claim = queue.claim(view.id, str(Owner()), now=now_in(session))
            assert claim is not None, "nobody else knows of it yet"
            plan_set = plan_set_of_one(of.search, spec, plan.model_copy(update={"rank": 1}), spec.search.objective)
            info = view.plan_set.search
            kept = plan_set.model_copy(update={"search": info, "reproducible": False, "warnings": (GIVEN,)})
            queue.finish(claim, kept, now=now_in(session))
        return kept

    def _search_of_key(self, session: Session, principal: str, key: str | None, body_hash: str) -> str | None:
        return None if key is None else search_of_key(session, principal, key, body_hash)

    def insert(
        self,
        session: Session,
        admitted: Admitted,
        tags: tuple[str, ...] = (),
        note: str = "",
        *,
        reuse: bool,
        enqueue: bool = True,
        webhook: str | None = None,
        batch_id: str | None = None,
    ) -> SearchView:
        """In an open transaction a queued search, or with `reuse` a finished copy of an equal one.

        The copy does not tell whose that was.

        Raises LimitError as `submit`.
        """
        view = self._insert(session, admitted, tags, note, reuse, enqueue, batch_id)
        if webhook is not None:
            Deliveries(session).add(view.id, webhook, now=now_in(session), is_finished=view.is_finished)
        return view

    def _insert(
        self,
        session: Session,
        admitted: Admitted,
        tags: tuple[str, ...],
        note: str,
        reuse: bool,
        enqueue: bool,
        batch_id: str | None,
    ) -> SearchView:
        now, content = now_in(session), admitted.content
        row = new_row(admitted.spec, content, note, now, self._principal)
        row.batch_id, row.expected_s = batch_id, admitted.expected_s
        row.origin = "server" if enqueue else "cli"
        equal = Searches(session).reusable(*astuple(content), team=self._reusable_team) if reuse else None
        if equal is not None:
            Searches(session).add_copy(row, equal, tags)
            Events(session).begin(row.id, STATUS, {"status": equal.status, "cached": True}, now=now)
            return new_view(row, tags, Plans(session).texts(row.id), cached=True)
        if enqueue:
            self._refuse_too_many(session, self._principal)
        Searches(session).add(row, tags)
        Events(session).begin(row.id, STATUS, {"status": "queued"}, now=now)
        if enqueue and self._runner is not None:
            self._runner.enqueue(session, row.id)
        return new_view(row, tags)

    def _refuse_too_many(self, session: Session, principal: Principal) -> None:
        """Counts and inserts in one transaction, one of a key's at a time: the limit holds over all servers."""
        if not principal.key_id:
            return
        keys = ApiKeys(session)
        keys.lock(principal.key_id)
        limit = principal.max_searches or self._settings.key_searches
        if keys.count_unfinished(principal.key_id) >= limit:
            raise LimitError(
                Message("services.key_searches_busy", count=limit),
                hint=Message("services.wait_or_cancel"),
            )

    # -- look --------------------------------------------------------------------------------------------------------

    def get(self, search_id: str) -> SearchView:
        """One search with everything stored about it.

        Raises NotFoundError when there is none of that id.
        """
        with self._database.read() as session:
            row_and_result = Searches(session).stored(search_id)
            if row_and_result is None:
                raise _no_search(search_id)
            stored, row = row_and_result
            self._principal.require_team(row.team, _no_search(search_id))
            running, queued = row.status == "running", row.status == "queued"
            return SearchView(
                stored=stored,
                progress=Events(session).latest_progress(search_id) if running else None,
                cached=row.cached_from is not None,
                cancel_requested=row.cancel_requested,
                tags=Searches(session).tags([search_id])[search_id],
                note=row.note,
                note_by=row.note_by,
                author=row.author,
                team=row.team,
                no_live_worker=queued and not self._has_live_worker(session),
                queue=self._outlook.place(session, search_id, row.expected_s) if queued else None,
                stale=self._freshness.is_stale(session, _resting(row)) if row.num_plans else False,
            )

    def _has_live_worker(self, session: Session) -> bool:
        return Workers(session).has_live(now_in(session), self._settings.worker_alive_s)

    def status(self, search_id: str) -> str:
        """The status alone: what somebody who waits asks often."""
        status = self.find_status(search_id)
        if status is None:
            raise _no_search(search_id)
        return status

    def find_status(self, search_id: str) -> str | None:
        """The status alone, None without such a search."""
        with self._database.read() as session:
            team_and_status = Searches(session).whose_status(search_id)
        return team_and_status[1] if team_and_status is not None and self._principal.sees(team_and_status[0]) else None

    def _is_there(self, session: Session, search_id: str) -> bool:
        """Whether there is such a search that the caller sees."""
        team = Searches(session).team(search_id)
        return team is not None and self._principal.sees(team)

    def list(
        self, where: SearchFilter = EVERYWHERE, *, limit: int = 20, after: str | None = None, sort: str = NEWEST
    ) -> SearchList:
        """Searches newest first, or as `search_list.page` says; `after` is the id of the last one seen.

        Raises AccessError when another team's are asked for.
        """
        where = replace(where, team=self._principal.team_asked_for(where.team))
        with self._database.read() as session:
            rows = page(session, LIST_COLUMNS, where, sort, limit=limit + 1, after=after)
            shown = rows[:limit]
            tags = Searches(session).tags([row.id for row in shown]) if shown else {}
            planned = [row for row in shown if row.num_plans]
            degrees = Plans(session).best_degrees([row.id for row in planned]) if planned else {}
            stale = self._freshness.judged(session, [_resting(row) for row in planned])
        items = tuple(_item(row, tags[row.id], degrees.get(row.id), stale.get(row.id, False)) for row in shown)
        return SearchList(items=items, has_more=len(rows) > limit, next=None)

    def events(self, search_id: str, after: int = 0) -> Sequence[Event]:
        """Events after event number `after`."""
        with self._database.read() as session:
            return Events(session).after(search_id, after) if self._is_there(session, search_id) else ()

    def news(self, after: Mapping[str, int]) -> dict[str, tuple[Sequence[Event], bool]]:
        """Events of each of these searches after that one, and whether it is finished or gone.

        One look for many callers, each of whom was found to see its search before; only events of searches that have
        new ones are read.
        """
        with self._database.read() as session:
            statuses = Searches(session).statuses(tuple(after))
            newest = Events(session).newest(tuple(after))
            return {
                search_id: (
                    Events(session).after(search_id, seen) if newest.get(search_id, 0) > seen else (),
                    statuses.get(search_id) in {*FINISHED, None},
                )
                for search_id, seen in after.items()
            }

    def plans(self, search_id: str) -> tuple[Plan, ...]:
        """The ranked plans of a search; none while it is not finished."""
        return tuple(Plan.model_validate_json(text) for text in self.plan_texts(search_id))

    def plan_texts(self, search_id: str) -> tuple[str, ...]:
        """The same as JSON text, ready to be sent."""
        with self._database.read() as session:
            version = Searches(session).engine_version(search_id)
            if version is None or not self._is_there(session, search_id):
                raise _no_search(search_id)
            texts = Plans(session).texts(search_id)
        return tuple(plan_json(text, version) for text in texts)

    def plan(self, plan_id: str) -> PlanView:
        """A plan by its id, with the newest PlanSet of the caller's that holds it.

        Raises NotFoundError when there is none of that id.
        """
        search = self.get(self.plan_text(plan_id).search_id)
        plan = next(plan for plan in search.plan_set.plans if plan.plan_id == plan_id)
        return PlanView(plan, search.plan_set, search.stale)

    def plan_text(self, plan_id: str) -> StoredPlan:
        """A plan by its id, as JSON text, ready to be sent.

        Raises NotFoundError when there is none of that id.
        """
        with self._database.read() as session:
            row = Plans(session).newest(plan_id, team=self._principal.own_team)
            if row is None:
                raise NotFoundError(
                    Message("common.there_is_no", name=plan_id, what=Message("label.plan")),
                    hint=joined(("autodeploy plan SPEC", "GET /v1/searches"), "or"),
                )
            stale = self._freshness.is_stale(session, _resting(row))
        return StoredPlan(row.id, plan_json(row.document, row.engine_version), stale)

    def count_by_status(self) -> dict[str, int]:
        """Number of searches of each status."""
        with self._database.read() as session:
            return Searches(session).count_by_status()

    # -- change ------------------------------------------------------------------------------------------------------

    def annotate(self, search_id: str, *, tags: Iterable[str] | None = None, note: str | None = None) -> SearchView:
        """Replaces tags, note or both."""
        checked = check_annotations(tags or (), note or "")
        with self._database.write() as session:
            searches = Searches(session)
            row = searches.lock(search_id)
            if row is None or not self._principal.sees(row.team):
                raise _no_search(search_id)
            if tags is not None:
                searches.set_tags(search_id, checked)
            noted = {} if note is None or note == row.note else {"note": note, "note_by": self._principal.name}
            searches.change(search_id, {"updated_at": now_in(session), **noted})
        return self.get(search_id)

    def cancel(self, search_id: str) -> SearchView:
        """Stops a search: at once when it is queued, soon when it runs.

        Raises ConflictError when it is finished; cancelling twice is no error.
        """
        with self._database.write() as session:
            is_there = self._is_there(session, search_id)
            before = Queue(session).request_cancel(search_id, now=now_in(session)) if is_there else None
        if before is None:
            raise _no_search(search_id)
        if before in FINISHED and before != "cancelled":
            raise ConflictError(Message("services.search_is_finished", search=search_id, status=before))
        return self.get(search_id)

    def delete(self, search_id: str) -> None:
        """Removes a search with its plans and events.

        Raises AccessError when somebody else made it and this is no admin; ConflictError when it is running.
        """
        with self._database.write() as session:
            searches = Searches(session)
            row = searches.lock(search_id)
            if row is None or not self._principal.sees(row.team):
                raise _no_search(search_id)
            if row.principal != self._principal.key_id:
                self._principal.require("admin")
            if row.status == "running":
                raise ConflictError(
                    Message("services.search_is_running", search=search_id), hint=Message("services.cancel_it_first")
                )
            searches.delete(search_id)


def _item(row: Any, tags: tuple[str, ...], degrees: dict[str, int] | None, stale: bool | None) -> SearchItem:
    cached = row.cached_from is not None
    more = {"model": row.model_name, "best_degrees": degrees, "cached": cached, "tags": tags, "stale": stale}
    return SearchItem(**{**row._mapping, **more})


def _resting(row: Any) -> Resting:
    return Resting(row.id, row.spec_hash, row.profile_hash, row.team, (row.num_overlays, row.overlays_at))


def _no_search(search_id: str) -> NotFoundError:
    return NotFoundError(
        Message("common.there_is_no", name=search_id, what=Message("label.search")), hint="GET /v1/searches"
    )
