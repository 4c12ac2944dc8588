"""What the settings say of the slots of a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.store.queue_state import SlotRules

if TYPE_CHECKING:
    from autodeploy.settings import Settings


def slot_rules(settings: Settings, *, runs_here: bool = True) -> SlotRules:
    """The rules of a runner's slots, or of a process that runs no searches itself."""
    own = settings.workers if runs_here else 0
    return SlotRules(own=own, max_running=settings.key_running, alive_s=settings.worker_alive_s)
