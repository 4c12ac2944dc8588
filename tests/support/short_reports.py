"""What a worker of pytest-xdist tells of a test: how its call went, and what failed or was left out before or after it.

That a test begins, was set up, was torn down and has ended are four messages more, which nothing shows; each is packed,
sent, unpacked and handed to all plugins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


class ShortReports:
    """A plugin of pytest in the place of the worker's own hooks."""

    def __init__(self, worker: Any) -> None:
        self._report = worker.pytest_runtest_logreport
        worker.pytest_runtest_logreport = worker.pytest_runtest_logstart = worker.pytest_runtest_logfinish = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tells it unless it is a passed step around the call."""
        if report.when == "call" or not report.passed:
            self._report(report)


def shorten(config: pytest.Config) -> None:
    """Of a worker, where no more was asked for."""
    option = config.option
    asked_for = option.verbose > 0 or option.durations is not None or getattr(option, "xmlpath", None)
    workers = [plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "run_one_test")]
    if not asked_for:
        for worker in workers:
            config.pluginmanager.unregister(worker)
            config.pluginmanager.register(ShortReports(worker))
            config.pluginmanager.register(worker)
