"""Pauses of the service, a tenth as long and less: tests wait for what comes after them, not for the pauses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# module -> constant -> seconds
SHORT_S: dict[str, dict[str, float]] = {
    "api.following": {"LOOK_S": 0.02, "IDLE_LOOK_S": 0.05},
    "autodeploy.client._transport": {"FIRST_PAUSE_S": 0.02},
    "autodeploy.jobs.bounded_loop": {"LOOK_S": 0.02, "REST_S": 0.2},
    "autodeploy.jobs.distributed": {"RESTART_PAUSE_S": 0.05, "STUCK_S": 0.2},
    "autodeploy.jobs.procrastinate_queue": {"GRACE_S": 0.3, "WATCH_END_S": 0.2},
    "autodeploy.jobs.reporter": {"TICK_S": 0.05},
    "autodeploy.jobs.webhook_sender": {"POLL_S": 0.05},
}


def shorten(set_: Callable[[object, str, float], None] = setattr) -> None:
    """Sets them all, in this process and in those that it forks; a name that is no constant any more is an error."""
    for module, pauses in SHORT_S.items():
        found = importlib.import_module(module)
        for name, seconds in pauses.items():
            assert getattr(found, name) >= seconds, f"{module}.{name}"
            set_(found, name, seconds)
