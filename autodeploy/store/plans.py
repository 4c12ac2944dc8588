"""The plans of searches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from autodeploy.store.tables import PlanRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session


class Plans:
    """Repository of plans inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def documents(self, search_id: str) -> Sequence[dict[str, Any]]:
        """The plans of a search in their order."""
        query = select(PlanRow.document).where(PlanRow.search_id == search_id).order_by(PlanRow.position)
        return self.session.scalars(query).all()

    def newest(self, plan_id: str) -> PlanRow | None:
        """The plan with that id, of the newest search that found it."""
        query = select(PlanRow).where(PlanRow.plan_id == plan_id).order_by(PlanRow.search_id.desc()).limit(1)
        return self.session.scalar(query)
