"""Which worker of pytest-xdist runs what, without what has run: its own schedule counts that after every message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class ShortSchedule(LoadScopeScheduling):
    """Modules in turn, as `--dist loadscope` has them; only tests that have yet to run stay in it."""

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forgets the test, and its module with the last."""
        name = self.registered_collections[node][item_index]
        scope, modules = self._split_scope(name), self.assigned_work[node]
        del modules[scope][name]
        if not modules[scope]:
            del modules[scope]
        self._reschedule(node)
