"""Runs, the overlays of clusters, and re-estimated plans."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Text, cast, delete, or_, select, update

from autodeploy.messages import Message
from autodeploy.service.store.base import Repository
from autodeploy.service.store.plan_rows import Plans
from autodeploy.service.store.search_list import WALKED_NEWEST, indexed_word
from autodeploy.service.store.tables import OverlayRow, PlanRow, ReestimateRow, RunRow, SearchRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Select
    from sqlalchemy.orm import Session

    from autodeploy.specs.spec import Spec


FINISHED_WITH_PLANS = ("optimal", "feasible")


@dataclass(frozen=True, slots=True)
class RunTexts:
    """A run with its documents as JSON text: whoever reads them may be another process."""

    id: str
    spec: str
    plan: str
    measured: str


@dataclass(frozen=True, slots=True)
class SearchTexts:
    """A search with its spec and its plans as JSON text."""

    id: str
    spec: str
    plans: tuple[str, ...]


class Ledger(NamedTuple):
    """The runs of one team on a cluster of one profile. No other team's or cluster's moves it."""

    cluster: str
    profile: str
    team: str


class Runs(Repository):
    """Repository of measurements inside one session."""

    # -- runs ------------------------------------------------------------------------------------------------------

    def add(self, row: RunRow) -> None:
        """Inserts a run.

        Raises sqlalchemy.exc.IntegrityError when another transaction stored the same measurement of the same plan
        first.
        """
        self.session.add(row)
        self.session.flush()

    def get(self, run_id: str) -> RunRow | None:
        """The run with that id."""
        return self.session.get(RunRow, run_id)

    def of_content(self, plan_id: str, content_hash: str) -> RunRow | None:
        """The run of a plan with exactly these measurements."""
        query = select(RunRow).where(RunRow.plan_id == plan_id, RunRow.content_hash == content_hash)
        return self.session.scalar(query)

    def page(
        self,
        *,
        plan_id: str | None = None,
        cluster: str | None = None,
        author: str | None = None,
        team: str | None = None,
        limit: int,
        after: str | None = None,
    ) -> Sequence[RunRow]:
        """Up to `limit` runs, newest first, that come after the run `after`."""
        query = select(RunRow).order_by(RunRow.id.desc()).limit(limit)
        if author is not None:
            query = query.where(RunRow.author == author)
        if team is not None:
            query = query.where(RunRow.team == team)
        if plan_id is not None:
            query = query.where(RunRow.plan_id == plan_id)
        if cluster is not None:
            query = query.where(RunRow.cluster == cluster)
        if after is not None:
            query = query.where(RunRow.id < after)
        return self.session.scalars(query).all()

    def ids_of_cluster(self, where: Ledger, *, limit: int) -> list[str]:
        """Ids of the newest runs on a cluster that count, newest first."""
        return list(self.session.scalars(_of_cluster(select(RunRow.id), where, limit)))

    def of_cluster(self, where: Ledger, *, limit: int, also: str = "") -> tuple[RunTexts, ...]:
        """The newest runs on a cluster that count, newest first, with the run `also`, which is to."""
        query: Any = select(RunRow.id, cast(RunRow.spec, Text), cast(RunRow.plan, Text), cast(RunRow.measured, Text))
        return tuple(RunTexts(*row) for row in self.session.execute(_of_cluster(query, where, limit, also)))

    def count_from_now_on(self, run_id: str) -> None:
        """The run counts."""
        self.session.execute(update(RunRow).where(RunRow.id == run_id).values(counts=True))

    def delete(self, run_id: str) -> None:
        """Removes a run."""
        self.session.execute(delete(RunRow).where(RunRow.id == run_id))

    # -- overlays --------------------------------------------------------------------------------------------------

    def overlay(self, where: Ledger) -> OverlayRow | None:
        """The overlay of a cluster."""
        return self.session.get(OverlayRow, where)

    def overlays(self, team: str | None, cluster: str | None = None) -> Sequence[OverlayRow]:
        """Overlays of a team or of all teams, of one cluster or of all, by name."""
        query = select(OverlayRow).order_by(OverlayRow.cluster, OverlayRow.profile, OverlayRow.team)
        if team is not None:
            query = query.where(OverlayRow.team == team)
        if cluster is not None:
            query = query.where(OverlayRow.cluster == cluster)
        return self.session.scalars(query).all()

    def set_overlay(self, row: OverlayRow) -> None:
        """Stores or replaces a cluster's overlay."""
        self.session.merge(row)
        self.session.flush()

    def delete_overlay(self, where: Ledger) -> None:
        """Removes a cluster's overlay."""
        of_team = (OverlayRow.cluster == where.cluster, OverlayRow.profile == where.profile)
        self.session.execute(delete(OverlayRow).where(*of_team, OverlayRow.team == where.team))

    # -- plans under an overlay ------------------------------------------------------------------------------------

    def planned_ids(self, cluster: str, *, limit: int, team: str | None = None) -> list[str]:
        """Ids of the newest searches on a cluster that found plans, of one team or of all."""
        query: Any = select(SearchRow.id)
        found = _planned(self.session, query if team is None else query.where(SearchRow.team == team), cluster, limit)
        return [row[0] for row in found]

    def planned_searches(self, where: Ledger, *, limit: int) -> tuple[SearchTexts, ...]:
        """The newest searches of the team on a cluster that found plans."""
        query: Any = select(SearchRow.id, cast(SearchRow.spec, Text)).where(SearchRow.team == where.team)
        rows = _planned(self.session, query, where.cluster, limit)
        return tuple(SearchTexts(row[0], row[1], Plans(self.session).texts(row[0])) for row in rows)

    def replace_reestimates(self, search_ids: Sequence[str], rows: Iterable[ReestimateRow]) -> None:
        """Replaces what is known of the plans of these searches under their cluster's overlay."""
        self.session.execute(delete(ReestimateRow).where(ReestimateRow.search_id.in_(search_ids)))
        stored_plans = select(PlanRow.search_id, PlanRow.plan_id).where(PlanRow.search_id.in_(search_ids))
        still_there = {tuple(key) for key in self.session.execute(stored_plans)}
        self.session.add_all(row for row in rows if (row.search_id, row.plan_id) in still_there)
        self.session.flush()

    def reestimates(self, search_ids: Sequence[str]) -> Sequence[Any]:
        """Plans of these searches with their re-estimates, in their new order."""
        same_plan = (ReestimateRow.search_id == PlanRow.search_id) & (ReestimateRow.plan_id == PlanRow.plan_id)
        query = (
            select(
                ReestimateRow.search_id,
                ReestimateRow.plan_id,
                ReestimateRow.profile_hash,
                PlanRow.rank.label("old_rank"),
                ReestimateRow.rank.label("new_rank"),
                PlanRow.step_time_s.label("old_step_time_s"),
                ReestimateRow.step_time_s.label("new_step_time_s"),
            )
            .join(PlanRow, same_plan)
            .where(ReestimateRow.search_id.in_(search_ids))
            .order_by(ReestimateRow.search_id.desc(), ReestimateRow.rank)
        )
        return self.session.execute(query).all()


def _of_cluster(query: Select[Any], where: Ledger, limit: int, also: str = "") -> Select[Any]:
    counting = or_(RunRow.counts, RunRow.id == also) if also else RunRow.counts
    columns = (RunRow.cluster, RunRow.profile, RunRow.team)
    of_cluster = query.where(*(column == value for column, value in zip(columns, where, strict=True)), counting)
    return of_cluster.order_by(RunRow.id.desc()).limit(limit)


def _planned(session: Session, query: Select[Any], cluster: str, limit: int) -> Sequence[Any]:
    """Rows of the newest searches on a cluster: among those that came last, else from the index of clusters."""
    planned = query.where(SearchRow.status.in_(FINISHED_WITH_PLANS), SearchRow.num_plans > 0).limit(limit)
    last = session.scalar(select(SearchRow.id).order_by(SearchRow.id.desc()).offset(WALKED_NEWEST).limit(1))
    newest = planned.where(SearchRow.cluster == cluster).order_by(SearchRow.id.desc())
    rows = session.execute(newest if last is None else newest.where(SearchRow.id > last)).all()
    if last is None or len(rows) == limit:
        return rows
    # Concatenated, the cluster is that of its index, and the id no longer that of its own, which would be walked.
    of_cluster = planned.where(indexed_word(SearchRow.cluster) == cluster)
    return session.execute(of_cluster.order_by((SearchRow.id + "").desc())).all()


# Who changed an overlay and when, as the overlay says it, and the warning of plans that rest on a fresh one.
# For so long whoever plans on a cluster is told that its predictions moved.
FRESH = timedelta(days=7)


def changed(overlay: dict[str, Any], by: str, now: datetime) -> dict[str, Any]:
    """The overlay with who changed it and when in its report, which no number follows."""
    return overlay | {"report": overlay.get("report", {}) | {"changed_by": by, "changed_at": now.isoformat()}}


def fresh_overlay_warning(spec: Spec, now: datetime) -> str | None:
    """Warning for a spec whose overlay was changed in the last seven days; None without or with an older one."""
    overlay = spec.cluster.overlay
    report = overlay.get("report") if isinstance(overlay, dict) else None
    at = report.get("changed_at") if isinstance(report, dict) else None
    if not isinstance(report, dict) or not isinstance(at, str):
        return None
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:  # somebody's own overlay, which may say anything
        return None
    if moment.tzinfo is None or now - moment > FRESH:
        return None
    by = str(report.get("changed_by") or "")[:100]
    said = {
        "cluster": spec.cluster.ledger_name,
        "when": f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
    }
    return Message("specs.measured_runs_changed_predictions", **said, key=by or "-")
