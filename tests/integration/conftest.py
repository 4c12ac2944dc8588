"""Databases, services and running apps for the tests of the service."""

from __future__ import annotations

import shutil
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pytest

from api.app import create_app
from autodeploy.kit.settings import Settings
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.session import Services, open_services
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.specs.spec import Spec
from tests import factories
from tests.support import made_once
from tests.support.forked_processes import processes
from tests.support.openapi_document import routes_read_once
from tests.support.postgresql import ReusedDatabase, WithoutRows, fresh_database
from tests.support.short_pauses import shorten

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from autodeploy.specs.resources import KeyDocument

QUICK = "tests.quick_planner"
WAIT_S = 90.0
WAIT = {"Prefer": "wait=60"}


@pytest.fixture(scope="session", autouse=True)
def _forked() -> Iterator[None]:
    """Services inside a test fork their processes."""
    with processes(forked=True):
        yield


@pytest.fixture(scope="module", autouse=True)
def _short_pauses() -> Iterator[None]:
    """Services inside a test look often."""
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch.setattr)
        yield


@pytest.fixture(scope="session", autouse=True)
def _made_once() -> Iterator[None]:
    """Apps and databases of tests share what all of them would make alike."""
    with pytest.MonkeyPatch.context() as patch, routes_read_once():
        made_once.compile_statements_once(patch)
        made_once.read_routes_once(patch)
        yield


@pytest.fixture
def products_processes() -> Iterator[None]:
    """For tests of the processes themselves: made as the product makes them."""
    with processes(forked=False):
        yield


def migrate(database_url: str) -> None:
    """Gives a database its tables."""
    database = Database(database_url, pool_size=1)
    upgrade(database)
    database.close()


# Migrated once: a copy of the file, or a database without its rows, takes less time than to migrate again.
@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database without rows."""
    path = tmp_path_factory.mktemp("migrated") / "autodeploy.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_database(postgres_server_dsn: str, worker_name: str) -> Iterator[ReusedDatabase]:
    """The PostgreSQL database that tests get as a migrated one without rows."""
    template = f"autodeploy_{worker_name}_{uuid4().hex[:8]}"
    clean = WithoutRows()
    with fresh_database(postgres_server_dsn, template) as dsn:
        migrate(dsn)
        clean.learn(dsn)
        database = ReusedDatabase(postgres_server_dsn, f"{template}_used", template, clean)
        yield database
        database.close()


@pytest.fixture
def migrated_postgres_dsn(migrated_database: ReusedDatabase) -> Iterator[str]:
    """DSN of a migrated database for one test."""
    with migrated_database.lent() as dsn:
        yield dsn


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database: once SQLite, once PostgreSQL."""
    return str(request.getfixturevalue("migrated_postgres_dsn" if request.param == "postgresql" else "sqlite_url"))


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_file: Path) -> str:
    """A migrated SQLite database without rows."""
    path = tmp_path / "autodeploy.db"
    shutil.copy(migrated_file, path)
    return f"sqlite:///{path}"


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A migrated database, SQLite and PostgreSQL in turn."""
    database = Database(database_url, pool_size=5)
    yield database
    database.close()


def quick_settings(database_url: str, **changes: Any) -> Settings:
    """Settings that make time pass quickly."""
    values: dict[str, Any] = {"database_url": database_url, "heartbeat_s": 0.1, "stalled_after_s": 20.0, "poll_s": 0.05}
    return Settings(**values | changes)


@pytest.fixture
def services(database: Database, database_url: str) -> Iterator[Services]:
    """Services without a runner: searches stay queued."""
    with open_services(quick_settings(database_url), planner=QUICK) as opened:
        yield opened


def eventually(condition: Callable[[], Any], *, within_s: float = WAIT_S) -> Any:
    """What the condition gives as soon as it is true."""
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if value := condition():
            return value
        time.sleep(0.01)
    pytest.fail(f"not true within {within_s} s")


def named(behaviour: str, **changes: Any) -> Spec:
    """A spec whose model's name tells the quick planner what to do."""
    return Spec.model_validate(factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": behaviour}, **changes))


def status_is(services: Services, search_id: str, status: str) -> Callable[[], bool]:
    """Whether the search has that status, asked when it is called."""
    return lambda: services.searches.status(search_id) == status


@asynccontextmanager
async def running_app(settings: Settings, *, planner: str = QUICK) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app, which runs inside this process."""
    app = create_app(settings, planner=planner)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=WAIT_S) as client,
    ):
        yield client


@dataclass(frozen=True)
class Site:
    """An app that asks for keys; keys by team and scope: two teams, `vision` and `speech`, and an admin."""

    client: httpx.AsyncClient
    access: AccessService
    keys: dict[str, str]
    views: dict[str, KeyDocument]

    def by(self, name: str, **headers: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[name]}"} | headers

    async def search(self, name: str, cluster: str | None = None, **changes: Any) -> dict[str, Any]:
        """A finished search of that key, perhaps on a cluster of a name of its own."""
        body = factories.spec_document(**changes)
        if cluster is not None:
            body["cluster"] |= {"name": cluster}
        answer = await self.client.post("/v1/searches", json=body, headers=self.by(name) | WAIT)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def get(self, name: str, address: str, **params: Any) -> Any:
        answer = await self.client.get(address, headers=self.by(name), params=params or None)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def shared_site(database_url: str, **changes: Any) -> AsyncIterator[Site]:
    database = Database(database_url, pool_size=2)
    upgrade(database)
    access = AccessService(database)
    made = {
        f"{team}-{role}": access.create(f"{team}-{role}", scope, team=team)
        for team in ("vision", "speech")
        for role, scope in (("reader", "read"), ("writer", "write"), ("fitter", "calibrate"))
    }
    made["root"] = access.create("root", "admin", team="operations")
    async with running_app(quick_settings(database_url, auth="keys", **changes)) as client:
        yield Site(client, access, {n: key for n, (key, _) in made.items()}, {n: view for n, (_, view) in made.items()})
    database.close()


@pytest.fixture
async def site(database_url: str) -> AsyncIterator[Site]:
    async with shared_site(database_url) as opened:
        yield opened
