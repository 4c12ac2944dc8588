"""The plans of searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Text, cast, insert, literal, select

from autodeploy.store.planset_rows import StoredPlan
from autodeploy.store.tables import PlanRow, SearchRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

DOCUMENT_TEXT: Any = cast(PlanRow.document, Text)


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
        query = select(DOCUMENT_TEXT).where(PlanRow.search_id == search_id).order_by(PlanRow.position)
        return tuple(self.session.scalars(query))

    def newest(self, plan_id: str) -> StoredPlan | None:
        """The plan with that id, of the newest search that found it."""
        query = (
            select(
                PlanRow.search_id,
                SearchRow.engine_version,
                DOCUMENT_TEXT,
                SearchRow.spec_hash,
                SearchRow.profile_hash,
            )
            .join(SearchRow, SearchRow.id == PlanRow.search_id)
            .where(PlanRow.plan_id == plan_id)
            .order_by(PlanRow.search_id.desc())
            .limit(1)
        )
        row = self.session.execute(query).one_or_none()
        return None if row is None else StoredPlan(*row)

    def copy(self, search_id: str, *, to: str) -> None:
        """The plans of one search become those of another, too, without being read."""
        columns = [column for column in PlanRow.__table__.columns if column.name != "search_id"]
        old = select(literal(to), *columns).where(PlanRow.search_id == search_id)
        self.session.execute(insert(PlanRow).from_select(["search_id", *(column.name for column in columns)], old))
