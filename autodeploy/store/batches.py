"""Batches: searches that were asked for together, and the best plan of each as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, select

from autodeploy.store.service_tables import BatchRow
from autodeploy.store.tables import PlanRow, SearchRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.orm import Session

ENTRY_COLUMNS: tuple[Any, ...] = (
    SearchRow.id.label("search_id"),
    SearchRow.status,
    SearchRow.error,
    SearchRow.num_npus,
    SearchRow.seq_length,
    SearchRow.global_batch_size,
    SearchRow.best_plan_id,
    SearchRow.best_step_time_s,
    SearchRow.best_tokens_per_s_per_npu,
    SearchRow.best_mfu,
    SearchRow.gap,
    *(PlanRow.peak_memory_gib, PlanRow.tp, PlanRow.pp, PlanRow.vpp, PlanRow.dp, PlanRow.cp, PlanRow.ep),
    PlanRow.micro_batch_size,
    PlanRow.schedule,
)


class Batches:
    """Repository of batches inside one session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def add(self, row: BatchRow) -> None:
        """Inserts a batch; its searches name it."""
        self.session.add(row)
        self.session.flush()

    def get(self, batch_id: str) -> BatchRow | None:
        """The batch with that id."""
        return self.session.get(BatchRow, batch_id)

    def batch_of(self, search_id: str) -> str | None:
        """The batch that a search belongs to."""
        return self.session.scalar(select(SearchRow.batch_id).where(SearchRow.id == search_id))

    def entries(self, batch_id: str) -> Sequence[Any]:
        """A row of ENTRY_COLUMNS for each search, in the order of the sweep; of a plan that is not there, None."""
        best = and_(PlanRow.search_id == SearchRow.id, PlanRow.plan_id == SearchRow.best_plan_id)
        query = (
            select(*ENTRY_COLUMNS)
            .outerjoin(PlanRow, best)
            .where(SearchRow.batch_id == batch_id)
            .order_by(SearchRow.num_npus, SearchRow.seq_length, SearchRow.global_batch_size, SearchRow.id)
        )
        return self.session.execute(query).all()

    def unfinished(self, batch_id: str) -> Sequence[str]:
        """Its searches that wait or run."""
        query = select(SearchRow.id).where(SearchRow.batch_id == batch_id, SearchRow.status.in_(("queued", "running")))
        return self.session.scalars(query.order_by(SearchRow.id)).all()
