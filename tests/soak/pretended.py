"""`python -m tests.soak.pretended`: a worker whose searches take their time asleep.

Who waits for whom does not depend on what a search computes, but on a machine that is busy with other work a search of
a second takes ten. Everything else is the real thing: server, database, jobs, claims, pool processes.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import SearchCancelled
from autodeploy.kit.logs import configure_logging
from autodeploy.kit.settings import load_settings
from autodeploy.service.session import open_services
from tests import quick_planner

if TYPE_CHECKING:
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec

MODULE = "tests.soak.pretended"
SHORT_S, DEEP_S = 1.0, 75.0


def plan(spec: Spec, **more: Any) -> PlanSet:
    """The quick planner's plans, after as long as such a search takes on an idle machine."""
    should_cancel = more.get("should_cancel") or (lambda: False)
    end_s = time.monotonic() + (DEEP_S if spec.search.effort == "deep" else SHORT_S)
    while (left_s := end_s - time.monotonic()) > 0:
        if should_cancel():
            raise SearchCancelled
        time.sleep(min(0.1, left_s))
    return quick_planner.plan(spec, **more)


def main() -> None:
    """Works until it is told to stop."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    settings = load_settings()
    configure_logging(settings)
    with open_services(settings, as_worker=True, planner=MODULE):
        stopping.wait()


if __name__ == "__main__":
    main()
