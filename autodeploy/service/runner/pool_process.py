"""What runs inside a pool process. Importing this module is cheap; the planner is imported by `prepare`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.kit.deadline import interrupted_here
from autodeploy.kit.errors import MemoryLimitError, SearchCancelled
from autodeploy.kit.process import collect_seldom
from autodeploy.service.runner.execution import execute
from autodeploy.service.runner.fork_server import fork_server
from autodeploy.service.runner.memory_limit import is_worn, limit_memory
from autodeploy.service.runner.planning import load_planner
from autodeploy.service.store.database import Database

if TYPE_CHECKING:
    from autodeploy.service.store.queue import Claim

log = logging.getLogger(__name__)

# A search takes every core it gets: whoever answers requests on this machine comes first, then what they wait for.
NICENESS = 10
CALL_NICENESS = 5


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a pool process needs to run one search."""

    claim: Claim
    database_url: str
    planner: str
    heartbeat_s: float


def new_pool(planner: str, memory_bytes: int, niceness: int = NICENESS) -> ProcessPoolExecutor:
    """A pool of one process, which starts with the first call and which `prepare` readies.

    It is forked from a process that has imported the planner once for all of them and does nothing else: one that
    died, or was worn, is replaced in an instant, and they share what was imported.

    Parameters
    ----------
    planner : module with the planner's functions.
    memory_bytes : most address space of the process.
    niceness : added to that of the parent.
    """
    return ProcessPoolExecutor(
        max_workers=1,
        mp_context=fork_server(planner),
        initializer=prepare,
        initargs=(planner, memory_bytes, niceness),
    )


def prepare(planner: str, memory_bytes: int, niceness: int = NICENESS) -> None:
    """Runs once in each new process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then stops this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(niceness)
    limit_memory(memory_bytes)
    threading.Thread(target=_die_with_parent, name="die-with-parent", daemon=True).start()
    load_planner(planner)
    collect_seldom()


def _die_with_parent() -> None:
    """A killed server must not leave processes that compute for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def process_id() -> int:
    """The process; answers when `prepare` is done."""
    return os.getpid()


def run(job: Job) -> tuple[str, bool]:
    """Runs one search; how it ended, and whether the process may run another one.

    Whatever happens is in the database afterwards, so nothing is raised for it.
    """
    fresh, status = True, "failed"
    database = Database(job.database_url, pool_size=1, overflow=0)
    try:
        status = execute(database, job.claim, load_planner(job.planner), heartbeat_s=job.heartbeat_s).status
    except SearchCancelled:
        status = "cancelled"
    except MemoryLimitError as error:
        log.warning("search %s failed: %s", job.claim.search_id, error)
        fresh = False
    except Exception:
        log.exception("search %s failed", job.claim.search_id)
    finally:
        database.close()
    # What was cut off in the middle may have left traces.
    return status, fresh and not is_worn() and not interrupted_here()
