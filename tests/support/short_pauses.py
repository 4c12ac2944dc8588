"""Pauses of the service, a tenth as long and less: tests wait for what comes after them, not for the pauses."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# module -> constant -> seconds
SHORT_S: dict[str, dict[str, float]] = {
    "api.http.event_broadcast": {"LOOK_S": 0.02, "IDLE_LOOK_S": 0.05},
    "autodeploy.client.calls": {"FIRST_PAUSE_S": 0.02},
    "autodeploy.service.runner.distributed": {"LOOK_S": 0.02, "REST_S": 0.2, "RESTART_PAUSE_S": 0.05, "STUCK_S": 0.2},
    "autodeploy.service.runner.procrastinate_queue": {"GRACE_S": 0.3, "WATCH_END_S": 0.2},
    "autodeploy.service.runner.execution": {"TICK_S": 0.05},
    "autodeploy.service.webhooks.sending": {"POLL_S": 0.05},
}


def shorten(set_: Callable[[object, str, float], None] = setattr) -> None:
    """Sets them all, in this process and in those that it forks; a name that is no constant any more is an error."""
    for module, pauses in SHORT_S.items():
        found = importlib.import_module(module)
        for name, seconds in pauses.items():
            assert getattr(found, name) >= seconds, f"{module}.{name}"
            set_(found, name, seconds)
