"""Measured runs of plans: added, listed, removed, and the clusters they calibrate."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import IntegrityError

from autodeploy.analysis.trace_comparison import compared_parts
from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.kit.errors import ConflictError, NotFoundError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message, joined
from autodeploy.service.clusters.overlays import (
    batch_of,
    check_run,
    is_ledgers,
    measured_step_s,
    unnamed,
    without_overlay,
)
from autodeploy.service.requests.callers import ANYONE, Principal
from autodeploy.service.store.base import new_run_id, now_in
from autodeploy.service.store.plan_rows import read_plan
from autodeploy.service.store.runs import Ledger, Runs, changed
from autodeploy.service.store.searches import Searches
from autodeploy.service.store.tables import DEFAULT_TEAM, OverlayRow, ReestimateRow, RunRow
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.resources import (
    ClusterDocument,
    ReestimatedDocument,
    RunDocument,
    RunList,
    RunOutcomeDocument,
    iso,
)
from autodeploy.specs.spec import Spec, canonical_json, spec_of
from autodeploy.specs.training import TrainingSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from autodeploy.analysis.rehearsal.rehearse import Rehearsal
    from autodeploy.service.clusters.calibration import Refit
    from autodeploy.service.searches.views import PlanView
    from autodeploy.service.store.database import Database, Session
    from autodeploy.service.store.runs import RunTexts, SearchTexts
    from autodeploy.specs.cluster import ClusterSpec

    Fit = Callable[[str, str, Sequence[RunTexts], Sequence[SearchTexts]], Refit]


MAX_RUNS_READ = 100
MAX_SEARCHES_RERANKED = 20
# How often a fit starts again because runs came or went beside it.
MAX_FIT_ATTEMPTS = 5


class RunService:
    """The ledger. A fit runs outside any transaction; what it finds is stored if the runs are still the same."""

    def __init__(self, database: Database, fit: Fit, plan_of: Callable[[str], PlanView]) -> None:
        self._database = database
        self._fit = fit
        self._plan_of = plan_of
        self._principal = ANYONE

    def for_caller(self, principal: Principal, plan_of: Callable[[str], PlanView]) -> RunService:
        """The same service as that caller may use it; `plan_of` gives the plans that it sees."""
        bound = RunService(self._database, self._fit, plan_of)
        bound._principal = principal
        return bound

    # -- change ----------------------------------------------------------------------------------------------------

    def add(self, plan_id: str, measured: MeasuredRun, *, rehearsal: Rehearsal | None = None) -> RunOutcomeDocument:
        """Links a measurement to its plan, fits the team's overlay of the cluster again and re-ranks its stored plans.

        The same measurement of the same plan is one run of a team, however often it is sent. A caller without scope
        calibrate stores a run that is shown and judged and changes nothing; sent again with that scope it counts.

        rehearsal : of that plan, if not the plan ran but this: the run is of its spec, strategy and cards.

        Raises NotFoundError when there is no such plan; SpecError when the measurement contradicts the plan.
        """
        view = self._plan_of(plan_id)
        if rehearsal is not None:
            view = replace(view, plan=rehearsal.plan, plan_set=rehearsal.plan_set)
        spec = spec_of(view.plan_set.search)
        check_run(measured, spec, view.plan)
        row = _new_row(plan_id, view, spec, measured, self._principal, self._database.now())
        try:
            with self._database.write() as session:
                before = Runs(session).of_content(plan_id, row.content_hash)
                run = _view(before or row)
                if before is None:
                    Runs(session).add(row)
        except IntegrityError:  # another process stored it between our look and our insert
            with self._database.read() as session:
                before = Runs(session).of_content(plan_id, row.content_hash)
            if before is None:
                raise
            run = _view(before)
        ledger = Ledger(run.cluster, run.profile, run.team)
        fitted = self.find_cluster(ledger)
        if run.counts:  # new, or its fit did not come to its end when it was
            refits = before is None or fitted is None or fitted.updated_at <= run.created_at
        else:
            refits = self._principal.may("calibrate")
        if refits:
            reranked = self._refit(ledger, counting="" if run.counts else run.id)
            run = run.model_copy(update={"counts": True})
            fitted = self.find_cluster(ledger)
        else:
            reranked = self.reranked(run.cluster)
        return RunOutcomeDocument(run=run, cluster=fitted, reranked=reranked, created=before is None)

    def delete(self, run_id: str) -> None:
        """Removes a run; its cluster's overlay is fitted to those that are left, or goes with the last.

        Raises NotFoundError when there is none of that id; AccessError when it counts, or another key stored it, and
        this one has not scope calibrate.
        """
        with self._database.write() as session:
            row = self._row(session, run_id)
            if row.counts or row.principal != self._principal.key_id:
                self._principal.require("calibrate")
            ledger, counts = Ledger(row.cluster, row.profile, row.team), row.counts
            if not counts:
                Runs(session).delete(run_id)
        if counts:
            self._refit(ledger, without=run_id)

    def _refit(self, ledger: Ledger, *, without: str = "", counting: str = "") -> tuple[ReestimatedDocument, ...]:
        """Fits the overlay of a team's cluster to the team's runs on it that count.

        The run `without` goes, and the run `counting` counts, in the transaction that stores what comes of it.
        """
        for _ in range(MAX_FIT_ATTEMPTS):
            with self._database.read() as session:
                limit = MAX_RUNS_READ + bool(without)
                stored = Runs(session).of_cluster(ledger, limit=limit, also=counting)
                searches = Runs(session).planned_searches(ledger, limit=MAX_SEARCHES_RERANKED)
            stored = tuple(run for run in stored if run.id != without)[:MAX_RUNS_READ]
            refitted = self._fit(ledger.cluster, ledger.profile, stored, searches)
            with self._database.write() as session:
                runs = Runs(session)
                if without:
                    runs.delete(without)
                if counting:
                    runs.count_from_now_on(counting)
                if runs.ids_of_cluster(ledger, limit=MAX_RUNS_READ) != [run.id for run in stored]:
                    session.rollback()
                    continue
                if refitted.overlay:
                    now = now_in(session)
                    by = self._principal.name
                    overlay = changed(refitted.overlay, by, now)
                    row = OverlayRow(**ledger._asdict(), updated_at=now, overlay=overlay)
                    row.num_runs, row.report, row.changed_by = len(stored), refitted.report, by
                    runs.set_overlay(row)
                else:
                    runs.delete_overlay(ledger)
                runs.replace_reestimates(
                    [search.id for search in searches], [ReestimateRow(**values) for values in refitted.estimates]
                )
            return self.reranked(ledger.cluster)
        raise ConflictError(Message("services.runs_changed", cluster=ledger.cluster), hint=Message("common.try_again"))

    # -- look ------------------------------------------------------------------------------------------------------

    def get(self, run_id: str) -> RunDocument:
        """One run.

        Raises NotFoundError when there is none of that id.
        """
        with self._database.read() as session:
            return _view(self._row(session, run_id))

    def _row(self, session: Session, run_id: str) -> RunRow:
        """Raises NotFoundError without a run of that id that the caller sees."""
        row = Runs(session).get(run_id)
        if row is None or not self._principal.sees(row.team):
            raise NotFoundError(
                Message("common.there_is_no", name=run_id, what=Message("label.run")),
                hint=joined(("autodeploy runs ls", "GET /v1/runs"), "or"),
            )
        return row

    def list(
        self,
        *,
        plan_id: str | None = None,
        cluster: str | None = None,
        author: str | None = None,
        team: str | None = None,
        limit: int = 20,
        after: str | None = None,
    ) -> RunList:
        """Runs, newest first; `after` is the id of the last one seen.

        Raises AccessError when another team's are asked for.
        """
        team = self._principal.team_asked_for(team)
        with self._database.read() as session:
            rows = Runs(session).page(
                plan_id=plan_id, cluster=cluster, author=author, team=team, limit=limit + 1, after=after
            )
            items = tuple(_view(row) for row in rows[:limit])
            return RunList(items=items, has_more=len(rows) > limit, next=None)

    def clusters(self) -> tuple[ClusterDocument, ...]:
        """The caller's clusters with an overlay, by name; the caller's own team first where it sees all."""
        with self._database.read() as session:
            found = [ClusterDocument.model_validate(row) for row in Runs(session).overlays(self._principal.own_team)]
        return tuple(sorted(found, key=lambda each: (each.cluster, each.profile, each.team != self._principal.team)))

    def find_cluster(self, ledger: Ledger) -> ClusterDocument | None:
        """The overlay of a team's cluster."""
        with self._database.read() as session:
            row = Runs(session).overlay(ledger)
            return None if row is None else ClusterDocument.model_validate(row)

    def that_calibrate(self, cluster: ClusterSpec) -> tuple[RunTexts, ...]:
        """The runs that the overlay of this cluster is fitted to, newest first; none where a spec has its own."""
        if not is_ledgers(cluster):
            return ()
        with self._database.read() as session:
            ledger = Ledger(cluster.ledger_name, profile_of(without_overlay(cluster)).name, self._principal.team)
            return Runs(session).of_cluster(ledger, limit=MAX_RUNS_READ)

    def reranked(self, cluster: str) -> tuple[ReestimatedDocument, ...]:
        """The stored plans of a cluster in their new order, search by search, newest first."""
        with self._database.read() as session:
            own = self._principal.own_team
            return _reranked(Runs(session), Runs(session).planned_ids(cluster, limit=MAX_SEARCHES_RERANKED, team=own))

    def reranked_of_search(self, search_id: str) -> tuple[ReestimatedDocument, ...]:
        """The plans of one search in their new order; none without an overlay."""
        with self._database.read() as session:
            team = Searches(session).team(search_id)
            return _reranked(Runs(session), [search_id]) if team and self._principal.sees(team) else ()


def _reranked(runs: Runs, search_ids: Sequence[str]) -> tuple[ReestimatedDocument, ...]:
    return tuple(ReestimatedDocument.model_validate(row) for row in runs.reestimates(search_ids))


def _new_row(
    plan_id: str, view: PlanView, spec: Spec, measured: MeasuredRun, principal: Principal, now: datetime
) -> RunRow:
    plan, search = view.plan, view.plan_set.search
    document = measured.model_dump(mode="json")
    return RunRow(
        id=new_run_id(now),
        created_at=now,
        plan_id=plan_id,
        content_hash=_content_hash(document, principal.team, "" if plan.plan_id == plan_id else plan.plan_id),
        cluster=spec.cluster.ledger_name,
        profile=profile_of(without_overlay(spec.cluster)).name,
        model_name=spec.model.name,
        num_npus=plan.num_npus_used,
        source=measured.source,
        step_time_s=measured_step_s(measured, spec, plan),
        step_time_spread=measured.step_time_spread,
        tokens_per_s_per_npu=measured.tokens_per_s_per_npu,
        peak_memory_gib=measured.peak_memory_gib,
        predicted_step_time_s=plan.step_time_s,
        predicted_low_s=plan.uncertainty.low_s,
        predicted_high_s=plan.uncertainty.high_s,
        predicted_memory_gib=plan.allocator_peak_gib,
        profile_hash=search.profile_hash,
        engine_version=search.engine_version,
        spec=search.spec,
        plan=plan.model_dump(mode="json"),
        measured=document,
        note=measured.note,
        principal=principal.key_id,
        author=principal.name,
        team=principal.team,
        counts=principal.may("calibrate"),
    )


def _content_hash(document: dict[str, Any], team: str, rehearsal: str) -> str:
    """Hash of a measurement of a plan: equal ones of two teams are two, and neither tells of the other.

    rehearsal : id of the plan's rehearsal that ran; empty where the plan itself did.
    """
    content: Any = document if team == DEFAULT_TEAM else [team, document]
    if rehearsal:
        content = [rehearsal, content]
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _view(row: RunRow) -> RunDocument:
    plan, measured = read_plan(row.plan), MeasuredRun.model_validate(row.measured)
    measured_s, peak_gib, times = row.step_time_s, measured.peak_memory_gib, measured.profiler
    return RunDocument(
        id=row.id,
        created_at=iso(row.created_at),
        plan_id=row.plan_id,
        cluster=row.cluster,
        profile=row.profile,
        model=row.model_name,
        num_npus=row.num_npus,
        measured=measured,
        measured_step_time_s=measured_s,
        predicted_step_time_s=row.predicted_step_time_s,
        predicted_low_s=row.predicted_low_s,
        predicted_high_s=row.predicted_high_s,
        predicted_memory_gib=row.predicted_memory_gib,
        error=None if measured_s is None else measured_s / row.predicted_step_time_s - 1.0,
        memory_error=None if peak_gib is None else row.predicted_memory_gib / peak_gib - 1.0,
        inside=None if measured_s is None else row.predicted_low_s <= measured_s <= row.predicted_high_s,
        strategy=plan.strategy,
        breakdown=plan.breakdown,
        profiler_parts=() if times is None else compared_parts(plan.breakdown, times),
        profile_hash=row.profile_hash,
        engine_version=row.engine_version,
        tokens_per_step=float(batch_of(plan)) * TrainingSpec.model_validate(row.spec["training"]).sample_tokens,
        note=row.note,
        author=row.author,
        team=row.team,
        counts=row.counts,
    )


# A cluster's overlay for others.
# Of what the fit reports: figures over all runs, which name none.
FIGURES = ("bias_before", "bias_after", "mape_before", "mape_after", "mape_left_out")


def exported_overlay(runs: RunService, cluster: str, author: str, releases: tuple[str, ...] = ()) -> dict[str, Any]:
    """The overlay of a cluster as an overlay of a spec, which follows no ledger.

    author : who stands for it.
    releases : of the software that the runs were on, as `CANN 8.3.RC1`; nothing stored says them.

    Raises NotFoundError when the cluster has no overlay.
    """
    views = [view for view in runs.clusters() if view.cluster == cluster]
    if not views:
        names = ", ".join(sorted({view.cluster for view in runs.clusters()})) or "none"
        raise NotFoundError(
            Message("services.cluster_has_no_overlay", name=cluster),
            hint=Message("common.one_of", names=names),
        )
    view = views[0]
    report: dict[str, Any] = {"author": author, "engine_version": ENGINE_VERSION}
    if releases:
        report["releases"] = list(releases)
    report |= {"measured_runs": view.num_runs, "fitted_at": view.updated_at[:10]}
    report |= {name: view.report[name] for name in FIGURES if view.report.get(name) is not None}
    numbers = {key: value for key, value in view.overlay.items() if key != "report"}
    exported: dict[str, Any] = unnamed(numbers, cluster) if cluster != view.profile else numbers
    return {**exported, "report": report}
