"""Modules for each worker of pytest-xdist: those that wait beside those that compute, without what has run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

COMPUTING = ("tests/acceptance/", "tests/property/", "tests/unit/")
"""Folders whose tests compute from end to end; those of the others wait for servers, clocks and browsers."""


class ShortSchedule(LoadScopeScheduling):
    """Modules as `--dist loadscope` has them, by two queues; xdist's own schedule counts all that has run every time.

    The first worker takes modules that compute and the others those that wait, each in the order of the files, until
    one kind is used up: among workers that wait, one more than there are cores keeps them all busy.
    """

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forgets the test, and its module with the last."""
        name = self.registered_collections[node][item_index]
        scope, modules = self._split_scope(name), self.assigned_work[node]
        del modules[scope][name]
        if not modules[scope]:
            del modules[scope]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Brings the next module of the worker's kind to the front first."""
        computes = node is self.nodes[0]
        own = (scope for scope in self.workqueue if scope.startswith(COMPUTING) is computes)
        if (scope := next(own, None)) is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)
