"""The runner inside the server: each slot is a thread with a process of its own.

The search row is the job, so any number of servers may share one database.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING

from autodeploy.service.runner.orphan_recovery import hand_back, recover, recovery_pause_s, retry_or_fail
from autodeploy.service.runner.owner import Owner
from autodeploy.service.runner.planning import PLANNER
from autodeploy.service.runner.processes import SearchProcess
from autodeploy.service.runner.runner import SearchTally, slot_rules
from autodeploy.service.runner.workers import WorkerHeartbeat
from autodeploy.service.store.base import now_in
from autodeploy.service.store.database import DATABASE_ERRORS, Database
from autodeploy.service.store.queue import Claim, Queue

if TYPE_CHECKING:
    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.database import Session

log = logging.getLogger(__name__)


class EmbeddedRunner:
    """Runs `settings.workers` searches at a time in processes of this machine."""

    def __init__(self, database: Database, settings: Settings, *, planner: str = PLANNER) -> None:
        self._database = database
        self._settings = settings
        self._owner = Owner()
        self._rules = slot_rules(settings)
        self._stopping = threading.Event()
        self._work = threading.Condition()
        self._next_recovery_s = 0.0
        self._looked_s: float | None = None
        self._held: set[Claim] = set()
        self.tally = SearchTally()
        self._slots = [
            _Slot(self, SearchProcess(settings, planner, self.tally), number=number)
            for number in range(settings.workers)
        ]
        self.presence = WorkerHeartbeat(
            database,
            settings,
            self._owner,
            slots=settings.workers,
            busy=lambda: sum(slot.busy for slot in self._slots),
            looked_s=lambda: self._looked_s,
        )

    def start(self) -> None:
        self.recover_when_due()
        self.presence.start()
        for slot in self._slots:
            slot.start()

    def enqueue(self, session: Session, search_id: str) -> None:
        """Nothing to do: the queued row is the job."""

    def wake(self) -> None:
        with self._work:
            self._work.notify()

    def is_alive(self) -> bool:
        return any(slot.works() for slot in self._slots)

    def stop(self) -> None:
        self._stopping.set()
        with self._work:
            self._work.notify_all()
        self.presence.stop()
        for slot in self._slots:
            slot.process.interrupt()
        for slot in self._slots:
            if slot.ident is not None:
                slot.join()

    # -- for the slots -------------------------------------------------------------------------------------------

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def recover_when_due(self) -> None:
        """Takes back searches of runners that died, once in a while."""
        with self._work:
            if time.monotonic() < self._next_recovery_s:
                return
            self._next_recovery_s = time.monotonic() + recovery_pause_s(self._settings)
        recover(self._database, self._settings, self._owner, self.enqueue, tuple(self._held))

    def next_claim(self) -> Claim | None:
        """The search whose turn it is; without one, None after a wake-up or the poll interval."""
        with self._database.read() as session:
            waiting = Queue(session).has_queued()
        self._looked_s = time.monotonic()
        if waiting:
            with self._database.write() as session:
                claim = Queue(session).claim_next(str(self._owner), now=now_in(session), rules=self._rules)
            if claim is not None:
                self._held.add(claim)
                return claim
        self.pause()
        return None

    def pause(self) -> None:
        """Waits for work, a stop or the poll interval."""
        with self._work:
            if not self.stopping:
                self._work.wait(self._settings.poll_s)

    def let_go(self, claim: Claim) -> None:
        """Nothing runs that search here any more, whatever the database says."""
        self._held.discard(claim)

    def give_up(self, claim: Claim, how: BrokenProcessPool) -> None:
        """The process of that search is gone: handed back when we stopped it, else tried again or failed."""
        if self.stopping:
            hand_back(self._database, claim, self.enqueue)
        else:
            retry_or_fail(self._database, claim, self.enqueue, max_attempts=self._settings.max_attempts, how=how)


class _Slot(threading.Thread):
    """One search at a time."""

    def __init__(self, runner: EmbeddedRunner, process: SearchProcess, *, number: int) -> None:
        super().__init__(name=f"search-slot-{number}", daemon=True)
        self.process = process
        self.busy = False
        self._runner = runner

    def works(self) -> bool:
        """Whether the thread lives and its process comes up."""
        return self.is_alive() and self.process.comes_up

    def run(self) -> None:
        while not self._runner.stopping:
            try:
                self._serve_once()
            except BrokenProcessPool:
                if not self._runner.stopping:
                    log.warning("a process for searches died; it is made again")
                if not self.process.comes_up:
                    self._runner.pause()
            except DATABASE_ERRORS as error:
                log.warning("the database does not answer: %s", error)
                self._runner.pause()
            except Exception:  # a slot that ends would leave the queue without anybody
                log.exception("a slot of the runner failed")
                self._runner.pause()
        self.process.close()

    def _serve_once(self) -> None:
        self._runner.recover_when_due()
        self.process.start()
        claim = self._runner.next_claim()
        if claim is None:
            return
        self.busy = True
        try:
            self.process.run(claim)
        except BrokenProcessPool as how:
            self._runner.give_up(claim, how)
            raise
        finally:
            self._runner.let_go(claim)
            self.busy = False
