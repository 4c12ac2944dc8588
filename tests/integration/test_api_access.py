"""API keys: without one nothing is answered but health, with one what its scope allows, and no more than its limits."""

from __future__ import annotations

import io
import json
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog

from api.http.access import NOTHING_STORED, may_change
from api.http.session import COOKIE
from autodeploy.kit.errors import LimitError, NotFoundError
from autodeploy.kit.logs import configure_logging
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.runner.planning import load_planner
from autodeploy.service.searches.service import SearchService
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.specs.spec import Spec
from tests import factories
from tests.integration.conftest import QUICK, quick_settings, running_app
from tests.quick_planner import SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

HEALTH = {"/livez", "/readyz"}
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}


@dataclass(frozen=True)
class Guarded:
    """An app that asks for keys, a client without one, and keys by scope."""

    client: httpx.AsyncClient
    access: AccessService
    keys: dict[str, str]

    def bearer(self, scope: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[scope]}"}


@asynccontextmanager
async def guarded_app(database_url: str, **changes: Any) -> AsyncIterator[Guarded]:
    database = Database(database_url, pool_size=2)
    upgrade(database)
    access = AccessService(database)
    keys = {scope: access.create(scope, scope)[0] for scope in ("read", "write", "admin")}
    async with running_app(quick_settings(database_url, auth="keys", **changes)) as client:
        yield Guarded(client, access, keys)
    database.close()


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    path = tmp_path_factory.mktemp("access") / "autodeploy.db"
    async with guarded_app(f"sqlite:///{path}", key_guesses=10_000) as opened:
        yield opened


def operations(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Every method and filled path of the OpenAPI document."""
    return [
        (method.upper(), re.sub(r"\{[^}]*\}", "srch_0", path))
        for path, methods in document["paths"].items()
        for method in methods
    ]


async def whole_api(guarded: Guarded) -> list[tuple[str, str]]:
    answer = await guarded.client.get("/openapi.json", headers=guarded.bearer("read"))
    found = operations(answer.json())
    assert len(found) > 20
    return found


async def test_without_a_key_every_route_but_health_answers_401(guarded):
    addresses = [*await whole_api(guarded), ("GET", "/openapi.json"), ("GET", "/"), ("POST", "/new"), ("GET", "/none")]
    wrong = (
        {},
        {"Authorization": "Bearer adk_" + "A" * 43},
        {"Authorization": "Basic YTpi"},
        {"Cookie": f"{COOKIE}=x"},
    )
    for method, path in addresses:
        for headers in wrong:
            answer = await guarded.client.request(method, path, headers=headers)
            if path in HEALTH:
                assert answer.status_code == 200
                continue
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["type"] == "urn:autodeploy:problem:unauthorized"


async def test_with_a_read_key_whatever_stores_answers_403_and_predictions_do_not(guarded):
    writes, predictions = 0, 0
    for method, path in await whole_api(guarded):
        answer = await guarded.client.request(method, path, headers=guarded.bearer("read"), json={})
        if method == "GET":
            assert (answer.status_code in {401, 403}) is (path == "/v1/audit"), path
            continue
        if f"{method} {path}" in NOTHING_STORED:
            predictions += 1
            assert answer.status_code in {400, 415, 422}, (method, path)  # let in, and asked for what is missing
            continue
        writes += 1
        assert answer.status_code == 403, (method, path)
        assert answer.json()["hint"] == "needs a key with scope write"
    assert (writes >= 8, predictions) == (True, 9)


@pytest.mark.parametrize(
    ("asked", "changes"),
    [
        ("GET /v1/searches", False),
        ("POST /v1/why-not", False),
        ("POST /v1/why-not/", True),
        ("POST /v1/searches", True),
        ("DELETE /v1/runs/run_0", True),
        ("POST /plans/p_0/save", True),
        ("POST /plans/p_0/what-if", False),
        ("POST /plans/p_0/script", False),
        ("POST /searches/srch_0/notes", True),
        ("POST /new", True),
        ("POST /new/read", False),
        ("POST /never/heard/of", True),
        ("PUT /v1/estimates", True),
    ],
)
def test_only_what_is_known_to_store_nothing_changes_nothing(asked, changes):
    method, _, path = asked.partition(" ")
    assert may_change(method, path) is changes


async def test_a_read_key_predicts_and_stores_nothing(guarded):
    strategy = {"tp": 8, "pp": 4, "dp": 2, "micro_batch_size": 1}
    body = factories.spec_document(strategy=strategy)
    before = (await guarded.client.get("/v1/searches", headers=guarded.bearer("admin"))).json()["items"]
    answer = await guarded.client.post("/v1/estimates", json=body, headers=guarded.bearer("read"))
    assert answer.status_code in {200, 422}, answer.text
    after = (await guarded.client.get("/v1/searches", headers=guarded.bearer("admin"))).json()["items"]
    assert after == before


async def test_wrong_keys_of_an_address_are_throttled_and_known_ones_are_not(sqlite_url):
    async with guarded_app(sqlite_url, key_guesses=5) as guarded:
        assert (await guarded.client.get("/v1/searches", headers=guarded.bearer("read"))).status_code == 200
        wrong = [{"Authorization": f"Bearer adk_{number:043d}"} for number in range(8)]
        found = [await guarded.client.get("/v1/searches", headers=each) for each in wrong]
        assert [answer.status_code for answer in found] == [401] * 5 + [429] * 3
        assert 0 < int(found[-1].headers["retry-after"]) <= 60
        assert found[-1].json()["key"] == "api.too_many_wrong_keys"
        assert (await guarded.client.get("/v1/searches", headers=guarded.bearer("read"))).status_code == 200
        assert (await guarded.client.get("/livez")).status_code == 200


async def test_a_session_ends_for_every_copy_of_its_cookie(guarded):
    async def enter(key: str) -> dict[str, str]:
        entered = await guarded.client.post("/login", data={"key": key}, headers=OWN_PAGE)
        guarded.client.cookies.clear()
        assert key not in entered.headers["set-cookie"]
        return {"Cookie": entered.headers["set-cookie"].partition(";")[0]}

    async def status(session: dict[str, str]) -> int:
        return (await guarded.client.get("/v1/searches", headers=session)).status_code

    key, view = guarded.access.create("several", "read")
    first, second, third = [await enter(key) for _ in range(3)]
    assert [await status(each) for each in (first, second, third)] == [200] * 3
    await guarded.client.post("/logout", headers=first | OWN_PAGE)
    assert [await status(each) for each in (first, second, third)] == [401, 200, 200]
    assert guarded.access.end_sessions(view.id) == 2
    assert [await status(each) for each in (second, third)] == [401, 401]
    fourth = await enter(key)  # the key itself is as it was
    assert await status(fourth) == 200
    guarded.access.revoke(view.id)
    assert await status(fourth) == 401
    with pytest.raises(NotFoundError):
        guarded.access.end_sessions("key_0none")


async def test_a_revoked_key_ends_at_once(guarded):
    key, view = guarded.access.create("leaver", "read")
    headers = {"Authorization": f"Bearer {key}"}
    assert (await guarded.client.get("/v1/searches", headers=headers)).status_code == 200
    used = next(k for k in guarded.access.list() if k.id == view.id)
    assert used.last_used_at is not None
    guarded.access.revoke(view.id)
    assert (await guarded.client.get("/v1/searches", headers=headers)).status_code == 401


async def test_deleting_what_another_key_made_takes_an_admin(guarded):
    answer = await guarded.client.post(
        "/v1/searches", json=factories.spec_document(), headers=guarded.bearer("write") | {"Prefer": "wait=60"}
    )
    assert answer.status_code == 200
    address = answer.headers["location"]
    other, _ = guarded.access.create("other", "write")
    refused = await guarded.client.delete(address, headers={"Authorization": f"Bearer {other}"})
    assert refused.status_code == 403
    assert (await guarded.client.delete(address, headers=guarded.bearer("write"))).status_code == 204
    for scope in ("write", "admin"):
        assert (await guarded.client.delete("/v1/runs/run_0", headers=guarded.bearer(scope))).status_code == 404


async def test_searches_at_once_are_limited_by_key(database_url):
    async with guarded_app(database_url, key_searches=2) as guarded:
        slow = [factories.DEEPSEEK_V3 | {"name": SLOW, "num_hidden_layers": 61 - n} for n in range(3)]
        sent = [
            await guarded.client.post(
                "/v1/searches", json=factories.spec_document(model=model), headers=guarded.bearer("write")
            )
            for model in slow
        ]
        assert [answer.status_code for answer in sent] == [202, 202, 429]
        assert sent[2].json()["type"] == "urn:autodeploy:problem:limit-reached"
        assert int(sent[2].headers["retry-after"]) > 0
        other = await guarded.client.post(
            "/v1/searches", json=factories.spec_document(model=slow[2]), headers=guarded.bearer("admin")
        )
        assert other.status_code == 202
        for answer in (*sent[:2], other):
            await guarded.client.post(answer.headers["location"] + "/cancel", headers=guarded.bearer("write"))


async def test_keys_of_their_own_for_idempotency_and_length_of_a_spec(guarded):
    document = factories.spec_document(top_k=2)
    ids = set()
    for scope in ("write", "admin"):
        headers = guarded.bearer(scope) | {"Idempotency-Key": "same"}
        first = await guarded.client.post("/v1/searches", json=document, headers=headers)
        again = await guarded.client.post("/v1/searches", json=document, headers=headers)
        assert first.json()["search"]["id"] == again.json()["search"]["id"]
        ids.add(first.json()["search"]["id"])
    assert len(ids) == 2
    small, _ = guarded.access.create("small", "write", max_spec_bytes=1024)
    long = await guarded.client.post("/v1/searches", content=b" " * 2000, headers={"Authorization": f"Bearer {small}"})
    assert long.status_code == 413


async def test_a_browser_logs_in_with_a_key(guarded):
    html = {"Accept": "text/html"}
    page = await guarded.client.get("/searches/srch_0?lang=en", headers=html)
    assert page.status_code == 401
    assert 'name="wanted" value="/searches/srch_0?lang=en"' in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"]
    form = {"key": guarded.keys["write"], "wanted": "//elsewhere.example/"}
    refused = await guarded.client.post("/login", data=form | {"key": "adk_no"}, headers=OWN_PAGE)
    assert refused.status_code == 401
    assert "not valid" in refused.text
    foreign = await guarded.client.post("/login", data=form, headers={"Origin": "https://elsewhere.example"})
    assert foreign.status_code == 401
    entered = await guarded.client.post("/login", data=form, headers=OWN_PAGE)
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    session = {"Cookie": cookie.partition(";")[0]}
    guarded.client.cookies.clear()
    home = await guarded.client.get("/", headers=session | html)
    assert home.status_code == 200
    assert 'action="/logout"' in home.text
    submitted = {"form": "paste", "spec": json.dumps(factories.spec_document())}
    for origin in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "null"}):
        assert (await guarded.client.post("/new", data=submitted, headers=session | origin)).status_code == 403
    assert (await guarded.client.post("/new", data=submitted, headers=session | OWN_PAGE)).status_code == 303
    left = await guarded.client.post("/logout", headers=session | OWN_PAGE)
    assert "Max-Age=0" in left.headers["set-cookie"]


async def test_a_session_cannot_be_forged(guarded):
    entered = await guarded.client.post("/login", data={"key": guarded.keys["read"]}, headers=OWN_PAGE)
    guarded.client.cookies.clear()
    value = entered.headers["set-cookie"].partition(";")[0].partition("=")[2]
    changed = value[:-1] + ("A" if value[-1] != "A" else "B")
    for forged in (changed, value + "A", value[:-1], "ads_" + "A" * 43, guarded.keys["admin"]):
        answer = await guarded.client.get("/v1/searches", headers={"Cookie": f"{COOKIE}={forged}"})
        assert answer.status_code == 401


async def test_a_session_ends_by_itself(sqlite_url):
    async with guarded_app(sqlite_url, session_s=1.0) as guarded:
        entered = await guarded.client.post("/login", data={"key": guarded.keys["read"]}, headers=OWN_PAGE)
        session = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}
        guarded.client.cookies.clear()
        statuses = []

        async def status() -> int:
            return (await guarded.client.get("/v1/searches", headers=session)).status_code

        statuses.append(await status())
        with anyio.fail_after(10):
            while statuses[-1] != 401:
                await anyio.sleep(0.2)
                statuses.append(await status())
        assert statuses[0] == 200


async def test_no_key_in_the_log_or_the_database(sqlite_url, tmp_path, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    configure_logging(quick_settings(sqlite_url, log_level="debug"))
    try:
        async with guarded_app(sqlite_url) as guarded:
            secret = guarded.keys["write"]
            await guarded.client.get(f"/v1/models/{secret}", headers=guarded.bearer("write"))
            await guarded.client.get("/v1/searches", params={"model": secret}, headers=guarded.bearer("write"))
            await guarded.client.post("/login", data={"key": secret}, headers=OWN_PAGE)
            logging.getLogger("any").warning("sent %s to postgresql://user:hunter2@host/name", secret)
            try:
                raise RuntimeError(f"in a trace: {secret}")
            except RuntimeError:
                logging.getLogger("any").exception("failed")
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
        structlog.reset_defaults()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert any(line.get("path", "").startswith("/v1/models/adk_***") for line in lines)
    assert all(line["request_id"] for line in lines if line["event"] == "request")
    assert secret not in stream.getvalue()
    assert "hunter2" not in stream.getvalue()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in stored


def test_the_limit_holds_for_two_that_ask_at_once(database):
    access = AccessService(database)
    principal = access.recognise(access.create("one", "write", max_searches=3)[0])
    service = SearchService(database, load_planner(QUICK), None, quick_settings("sqlite:///unused.db"))

    def submit(number: int) -> bool:
        spec = Spec.model_validate(factories.spec_document(global_batch_size=384 * (number + 1)))
        try:
            service.for_caller(principal).submit(spec)
        except LimitError:
            return False
        return True

    with ThreadPoolExecutor(8) as clients:
        assert sum(clients.map(submit, range(8))) == 3
