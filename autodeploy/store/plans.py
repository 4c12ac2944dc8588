"""The plans of searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, bindparam, cast, insert, literal, select

from autodeploy.store.run_tables import OVERLAYS_AT
from autodeploy.store.tables import PlanRow, SearchRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

DOCUMENT_TEXT: Any = cast(PlanRow.document, Text)
TEXTS = select(DOCUMENT_TEXT).where(PlanRow.search_id == bindparam("search_id")).order_by(PlanRow.position)
NEWEST = (
    select(
        SearchRow.id,
        SearchRow.engine_version,
        SearchRow.spec_hash,
        SearchRow.profile_hash,
        DOCUMENT_TEXT.label("document"),
        *OVERLAYS_AT,
    )
    .join(PlanRow, PlanRow.search_id == SearchRow.id)
    .where(PlanRow.plan_id == bindparam("plan_id"))
    .order_by(PlanRow.search_id.desc())
    .limit(1)
)
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp")
BEST_DEGREES = select(PlanRow.search_id, *(getattr(PlanRow, name) for name in DEGREES)).where(
    PlanRow.search_id.in_(bindparam("search_ids", expanding=True)), PlanRow.position == 0
)
NEWEST_OF_TEAM = NEWEST.where(SearchRow.team == bindparam("team"))


class Plans:
    """Repository of plans inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def documents(self, search_id: str) -> Sequence[dict[str, Any]]:
        """The plans of a search in their order."""
        query = select(PlanRow.document).where(PlanRow.search_id == search_id).order_by(PlanRow.position)
        return self.session.scalars(query).all()

    def texts(self, search_id: str) -> tuple[str, ...]:
        """The plans of a search in their order, as JSON text."""
        return tuple(self.session.scalars(TEXTS, {"search_id": search_id}))

    def best_degrees(self, search_ids: Sequence[str]) -> dict[str, dict[str, int]]:
        """The parallel degrees of the best plan of each of these searches that has one; no document is read."""
        rows = self.session.execute(BEST_DEGREES, {"search_ids": search_ids})
        return {search_id: dict(zip(DEGREES, degrees, strict=True)) for search_id, *degrees in rows}

    def newest(self, plan_id: str, *, team: str | None = None) -> Any | None:
        """The plan with that id, of the newest search that found it: `document` as text, and columns of the search.

        `team`: of that team's searches.
        """
        if team is None:
            return self.session.execute(NEWEST, {"plan_id": plan_id}).one_or_none()
        return self.session.execute(NEWEST_OF_TEAM, {"plan_id": plan_id, "team": team}).one_or_none()

    def copy(self, search_id: str, *, to: str) -> None:
        """The plans of one search become those of another, too, without being read."""
        columns = [column for column in PlanRow.__table__.columns if column.name != "search_id"]
        old = select(literal(to), *columns).where(PlanRow.search_id == search_id)
        self.session.execute(insert(PlanRow).from_select(["search_id", *(column.name for column in columns)], old))
