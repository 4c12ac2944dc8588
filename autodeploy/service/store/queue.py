"""The search row as a job: claim, heartbeat, finish, hand back, recover.

Every step is one conditional UPDATE, so that two runners never hold the same search and a runner that was taken for
dead cannot finish what another one has taken over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import CursorResult, Update, bindparam, select, update

from autodeploy.service.store import queue_state
from autodeploy.service.store.events import STATUS, Deliveries, Events
from autodeploy.service.store.queue_state import SlotRules, eligible, first, tied
from autodeploy.service.store.searches import Searches, oldest_queued
from autodeploy.service.store.tables import RUNNING, SearchRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy.orm import Session

    from autodeploy.specs.planset import PlanSet


CLAIM_ATTEMPTS = 5
# What runners ask all the time, put together once.
_A_QUEUED_ID = oldest_queued(SearchRow.id).limit(1)
_CLAIM = (
    update(SearchRow)
    .where(SearchRow.id == bindparam("search_id"), SearchRow.status == "queued")
    .values(
        status="running",
        owner=bindparam("new_owner"),
        attempts=SearchRow.attempts + 1,
        heartbeat_at=bindparam("now"),
        started_at=bindparam("now"),
        updated_at=bindparam("now"),
    )
    .returning(SearchRow.id, SearchRow.attempts)
    .execution_options(synchronize_session=False)
)
_HELD = (
    (SearchRow.id == bindparam("search_id"))
    & (SearchRow.status == "running")
    & (SearchRow.owner == bindparam("held_by"))
    & (SearchRow.attempts == bindparam("attempt"))
)
_CANCEL_REQUESTED = select(SearchRow.cancel_requested).where(_HELD)
LostBy = Literal["crashes", "losses"]
_COUNTED = {"crashes": select(SearchRow.crashes).where(_HELD), "losses": select(SearchRow.losses).where(_HELD)}
ONE_SLOT = SlotRules()


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to run one search: holds as long as the row names this owner and attempt."""

    search_id: str
    owner: str
    attempt: int


class Queue:
    """Repository of the queue inside one write session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.events = Events(session)

    def has_queued(self) -> bool:
        """Whether a search waits. Reading first keeps an idle runner from taking the write lock."""
        return self.session.scalar(_A_QUEUED_ID) is not None

    def queued_ids(self) -> list[str]:
        """Every search that waits, the oldest first."""
        return list(self.session.scalars(oldest_queued(SearchRow.id)))

    def claim_next(self, owner: str, *, now: datetime, rules: SlotRules = ONE_SLOT) -> Claim | None:
        """Takes the search whose turn it is (`fair_order`); None when there is none that may run now.

        Nor while the tables are those of another version.
        """
        queue_state.take_turn(self.session)
        if not queue_state.is_current(self.session):
            return None
        for _ in range(CLAIM_ATTEMPTS):
            search_id = self._next(rules, now)
            if search_id is None:
                return None
            claim = self.claim(search_id, owner, now=now)
            if claim is not None:
                return claim
            # Somebody cancelled or claimed it by its id meanwhile: another look.
        return None

    def _next(self, rules: SlotRules, now: datetime) -> str | None:
        waiting = queue_state.heads(self.session)
        if not waiting:
            return None
        slots = queue_state.slots(self.session, rules, (each.key for each in waiting), now=now)
        candidates = tied(eligible(waiting, slots, now.timestamp()), slots)
        used_s = queue_state.used_s(self.session, candidates, slots.running, now=now)
        chosen = first(candidates, replace(slots, used_s=used_s))
        return None if chosen is None else chosen.id

    def claim(self, search_id: str, owner: str, *, now: datetime) -> Claim | None:
        """Takes that search, if it is queued."""
        row = self.session.execute(_CLAIM, {"search_id": search_id, "new_owner": owner, "now": now}).one_or_none()
        if row is None:
            return None
        self.events.append(row.id, STATUS, [{"status": "running", "attempt": row.attempts}], now=now)
        return Claim(row.id, owner, row.attempts)

    def beat(self, claim: Claim, *, now: datetime) -> bool:
        """Says that the search is alive. False when the claim holds no longer."""
        return self._change(claim, heartbeat_at=now) == 1

    def cancel_requested(self, claim: Claim) -> bool:
        """Whether somebody asked to stop it, or it is not ours any more."""
        wanted = self.session.scalar(_CANCEL_REQUESTED, _names(claim))
        return wanted is None or wanted

    def finish(self, claim: Claim, plan_set: PlanSet, *, now: datetime) -> bool:
        """Stores the result. False, and nothing is stored, when the claim holds no longer."""
        if self._change(claim, heartbeat_at=now) != 1:
            return False
        Searches(self.session).store_result(claim.search_id, plan_set, now=now)
        self.events.append(claim.search_id, STATUS, [{"status": plan_set.status}], now=now)
        Deliveries(self.session).search_ended(claim.search_id, now=now)
        return True

    def end(self, claim: Claim, status: str, error: str | None, *, now: datetime) -> bool:
        """Finishes without a result: cancelled or failed. False when the claim holds no longer."""
        done = self._change(
            claim, status=status, error=error, owner=None, heartbeat_at=None, updated_at=now, finished_at=now
        )
        if done:
            self.events.append(claim.search_id, STATUS, [{"status": status, "error": error}], now=now)
            Deliveries(self.session).search_ended(claim.search_id, now=now)
        return done == 1

    def hand_back(self, claim: Claim, *, now: datetime) -> str | None:
        """Puts a running search back into the queue as if it had not been started; the status it has then.

        Cancelled where that was asked for. None when the claim holds no longer.
        """
        if self._cancelled_instead(claim, now):
            return "cancelled"
        done = self._change(
            claim, status="queued", owner=None, heartbeat_at=None, attempts=claim.attempt - 1, updated_at=now
        )
        if done:
            self.events.append(claim.search_id, STATUS, [{"status": "queued", "reason": "shutdown"}], now=now)
        return "queued" if done else None

    def lose(
        self, claim: Claim, *, max_attempts: int, error: str, now: datetime, counted: LostBy = "crashes"
    ) -> str | None:
        """The process of a search died: the status it has then.

        Queued again, cancelled where that was asked for, failed after the last attempt; None when the claim holds no
        longer.

        max_attempts : that ended like this one; a search that takes its process down is not tried as often as one that
            only loses its worker.
        """
        if self._cancelled_instead(claim, now):
            return "cancelled"
        before = self.session.scalar(_COUNTED[counted], _names(claim))
        if before is None:
            return None
        count = before + 1
        if count >= max_attempts:
            ended = self.end(claim, "failed", f"{error} ({count} attempts)", now=now)
            return "failed" if ended else None
        done = self._change(claim, status="queued", owner=None, heartbeat_at=None, updated_at=now, **{counted: count})
        if done:
            self.events.append(claim.search_id, STATUS, [{"status": "queued", "reason": error}], now=now)
        return "queued" if done else None

    def _cancelled_instead(self, claim: Claim, now: datetime) -> bool:
        wanted = self.session.scalar(_CANCEL_REQUESTED, _names(claim))
        return bool(wanted) and self.end(claim, "cancelled", None, now=now)

    def recover(
        self,
        *,
        stalled_before: datetime,
        max_attempts: int,
        error: str,
        now: datetime,
        knows_alive: Callable[[Claim], bool | None] = lambda claim: None,
    ) -> dict[str, str]:
        """Takes back searches whose owner is known to be dead, or unknown with an old heartbeat; their status by id."""
        running = select(SearchRow.id, SearchRow.owner, SearchRow.attempts, SearchRow.heartbeat_at).where(RUNNING)
        lost = {}
        for search_id, owner, attempts, heartbeat_at in self.session.execute(running).all():
            claim = Claim(search_id, owner or "", attempts)
            alive = knows_alive(claim)
            if alive is None:
                alive = heartbeat_at is not None and heartbeat_at >= stalled_before
            if not alive:
                status = self.lose(claim, max_attempts=max_attempts, error=error, now=now, counted="losses")
                if status is not None:
                    lost[search_id] = status
        return lost

    def request_cancel(self, search_id: str, *, now: datetime) -> str | None:
        """Cancels a queued search, asks a running one to stop; gives the status before, None if unknown."""
        row = Searches(self.session).lock(search_id)
        if row is None:
            return None
        before = row.status
        if before == "queued":
            columns = {"status": "cancelled", "cancel_requested": True, "finished_at": now, "updated_at": now}
            Searches(self.session).change(search_id, columns)
            self.events.append(search_id, STATUS, [{"status": "cancelled"}], now=now)
            Deliveries(self.session).search_ended(search_id, now=now)
        elif before == "running" and not row.cancel_requested:
            Searches(self.session).change(search_id, {"cancel_requested": True, "updated_at": now})
            self.events.append(search_id, STATUS, [{"status": "running", "cancel_requested": True}], now=now)
        return before

    def _change(self, claim: Claim, **columns: object) -> int:
        values = {f"new_{name}": value for name, value in columns.items()}
        result = self.session.execute(_change_of(*columns), _names(claim) | values)
        assert isinstance(result, CursorResult)
        return result.rowcount


def _names(claim: Claim) -> dict[str, object]:
    """The parameters of `_HELD`."""
    return {"search_id": claim.search_id, "held_by": claim.owner, "attempt": claim.attempt}


@cache
def _change_of(*columns: str) -> Update:
    """Gives these columns of a held search the values `new_...`."""
    values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in columns}
    return update(SearchRow).where(_HELD).values(**values).execution_options(synchronize_session=False)
