"""What every runner of searches can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autodeploy.jobs.presence import Presence
    from autodeploy.jobs.tallies import SearchTally
    from autodeploy.store.database import Session


class JobRunner(Protocol):
    """Runs queued searches. One contract, whichever machine the work is done on."""

    def start(self) -> None:
        """Takes back what dead runners left and begins to work."""

    def enqueue(self, session: Session, search_id: str) -> None:
        """Makes the search a job in the caller's transaction: both are there, or neither is."""

    def wake(self) -> None:
        """Says that a transaction with a new job is committed."""

    def is_alive(self) -> bool:
        """Whether queued searches will be run."""

    @property
    def tally(self) -> SearchTally:
        """What became of the searches that this process ran."""

    @property
    def presence(self) -> Presence | None:
        """What this process says of itself in the database; None where it says nothing."""

    def stop(self) -> None:
        """Stops working and hands running searches back to the queue."""
