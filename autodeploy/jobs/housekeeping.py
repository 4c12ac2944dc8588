"""Once an hour one of the servers and workers deletes what the operator does not want to keep."""

from __future__ import annotations

import logging
import random
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from autodeploy.store.clock import utc_now
from autodeploy.store.one_at_a_time import my_turn
from autodeploy.store.retention import prune, prune_audit

if TYPE_CHECKING:
    from autodeploy.settings import Settings
    from autodeploy.store.database import Database

EVERY_S = 3600.0
# Soon after the start, and not everywhere at once.
FIRST_S = 60.0
# Small transactions with pauses between: whoever writes meanwhile waits for one of them at most.
DELETED_AT_ONCE = 50
PAUSE_S = 0.2

log = logging.getLogger(__name__)


class Housekeeper:
    """A thread that keeps the database small; does nothing where everything is kept."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="housekeeping", daemon=True)

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Returns when the transaction that runs is over."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def clean(self) -> int | None:
        """Deletes what is too old; how many searches, None where another process is at it."""
        now, settings = utc_now(), self._settings
        with my_turn(self._database, "housekeeping") as has_turn:
            if not has_turn:
                return None
            if settings.keep_audit_days is not None:
                prune_audit(self._database, before=now - timedelta(days=settings.keep_audit_days))
            if settings.keep_days is None:
                return 0
            before = now - timedelta(days=settings.keep_days)
            pruned = prune(
                self._database,
                before=before,
                keep_tagged=settings.keep_tagged,
                batch=DELETED_AT_ONCE,
                pause_s=PAUSE_S,
                should_stop=self._stopping.is_set,
            )
        if pruned:
            log.info("%d searches older than %d days are deleted", pruned, settings.keep_days)
        return pruned

    def _work(self) -> None:
        pause_s = random.uniform(0.5, 1.5) * FIRST_S
        while not self._stopping.wait(pause_s):
            pause_s = EVERY_S
            try:
                self.clean()
            except Exception as error:  # a database that is away or full; the next hour may be better
                log.warning("old searches were not deleted: %s", error)
