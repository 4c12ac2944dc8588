"""What every test may ask for: a PostgreSQL database, repeatable random cases; `tests/ui` adds a browser.

PostgreSQL comes from `AUTODEPLOY_TEST_DSN` (a server on which databases may be created) or is started from the
machine's own binaries. Where it or Chromium is missing, the tests that need it are skipped, all with the same reason,
so that the summary has one line for each. `AUTODEPLOY_REQUIRE_ALL=1` turns every skip into a failure.
"""

from __future__ import annotations

import functools
import gc
import os
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from hypothesis.internal import charmap
from hypothesis.internal.conjecture import providers
from hypothesis.internal.intervalsets import IntervalSet

import tests.support.one_thread  # noqa: F401
from tests.support import cold_start, forked_server, lost_interruptions, postgresql, short_reports
from tests.support.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

NO_POSTGRESQL = "PostgreSQL is not here (Debian: postgresql; or set AUTODEPLOY_TEST_DSN)"
NO_CHROMIUM = "Chromium is not here (Debian: chromium-headless-shell or chromium)"
FIXTURE_MARKS = {
    "postgres_server_dsn": "postgres",
    "chromium_browser": "chromium",
}

# Collecting makes millions of objects and all of them stay: looking for garbage among them takes longer than the rest.
gc.disable()

# Tests call commands of one program some hundred times: it is made once.
typer.testing._get_command = functools.cache(typer.testing._get_command)

# The same cases on every run and machine: a failure is then a change of the code.
settings.register_profile(
    "deterministic", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("deterministic")
# Nor do they follow what happens to be imported: Hypothesis would draw constants of every module that a run has loaded.
providers._get_local_constants = lambda: providers._local_constants

# What UTF-8 can say is all but surrogates: Hypothesis would encode a million characters in a fresh clone to find out.
_of_utf_8 = IntervalSet([(0, 0xD7FF), (0xE000, 0x10FFFF)]), IntervalSet(())
_of_others = charmap.intervals_from_codec
charmap.intervals_from_codec = lambda codec: _of_utf_8 if codec == "utf-8" else _of_others(codec)


def require_all() -> bool:
    """Whether a skipped test is a failure."""
    return os.environ.get("AUTODEPLOY_REQUIRE_ALL", "") not in {"", "0"}


def pytest_configure(config: pytest.Config) -> None:
    """Adds what watches the tests and tells of them."""
    config.pluginmanager.register(Watchdog())
    short_reports.shorten(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `make test` distributes tests; with any other distribution as pytest-xdist does."""
    if config.getvalue("dist") != "loadscope":
        return None
    from tests.support.short_schedule import ShortSchedule

    return ShortSchedule(config, log)


def pytest_unconfigure() -> None:
    """Ends what nobody asked for."""
    forked_server.let_go()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Shares what a fresh clone lacks among the workers, once pytest listens to what Python drops."""
    cold_start.share(session.config)
    lost_interruptions.forgive()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests by the fixtures they use, so that `-m "not postgres"` works."""
    for item in items:
        for fixture, mark in FIXTURE_MARKS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)


def pytest_collection_finish() -> None:
    """Hides modules and collected tests from the garbage collector: they stay, and each pass would walk them all."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Forks what tests fork from, where tests run."""
    if session.items and not session.config.option.collectonly:
        forked_server.fork_and_wait()


def _fold_skips(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Gives the skips of one missing program one place, so that the summary counts them on one line."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason in {NO_POSTGRESQL, NO_CHROMIUM}:
            report.longrepr = ("tests/conftest.py", None, reason)


def _fail_instead_of_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if require_all() and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{reason}\nAUTODEPLOY_REQUIRE_ALL is set: nothing may be skipped"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fold_skips(report)
    _fail_instead_of_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_instead_of_skip(report)
    return report


@pytest.fixture(scope="session", autouse=True)
def _own_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the person's own settings and database out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("AUTODEPLOY_") and name not in {"AUTODEPLOY_TEST_DSN", "AUTODEPLOY_REQUIRE_ALL"}:
                patch.delenv(name)
        database = tmp_path_factory.mktemp("default_database") / "autodeploy.db"
        patch.setenv("AUTODEPLOY_DATABASE_URL", f"sqlite:///{database}")
        # Tests themselves share the cores; `tests/property/test_two_processes.py` makes second processes all the same.
        patch.setenv("AUTODEPLOY_CORES", "1")
        patch.setenv("AUTODEPLOY_ASK_AHEAD", "false")
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asynchronous tests (`@pytest.mark.anyio`) run on asyncio, as the service does."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres_server_dsn() -> Iterator[str]:
    """DSN (`postgresql+psycopg://`) of a server on which databases may be created."""
    given = os.environ.get("AUTODEPLOY_TEST_DSN")
    if given:
        yield given
        return
    binaries = postgresql.server_binaries()
    if binaries is None:
        pytest.skip(NO_POSTGRESQL)
    with postgresql.running_server(binaries) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def postgres_dsn(postgres_server_dsn: str, worker_name: str) -> Iterator[str]:
    """DSN of one database for the whole session of this worker; tests leave no rows behind, or do not mind any."""
    with postgresql.fresh_database(postgres_server_dsn, f"autodeploy_{worker_name}_{uuid4().hex[:8]}") as dsn:
        yield dsn


@pytest.fixture(scope="session")
def emptied_database(postgres_server_dsn: str, worker_name: str) -> Iterator[postgresql.ReusedDatabase]:
    """The database that tests get as an empty one."""
    name = f"autodeploy_{worker_name}_{uuid4().hex[:8]}"
    database = postgresql.ReusedDatabase(postgres_server_dsn, name, "template1", postgresql.without_tables)
    yield database
    database.close()


@pytest.fixture
def empty_postgres_dsn(emptied_database: postgresql.ReusedDatabase) -> Iterator[str]:
    """DSN of an empty database for one test."""
    with emptied_database.lent() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def worker_name() -> str:
    """The name of this test process among several."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")
