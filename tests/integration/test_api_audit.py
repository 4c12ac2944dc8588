"""Every change, and every refused one, is in the audit log with who, from where, what and how it was answered."""

from __future__ import annotations

import io
import json
import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog

from api.http.access import ACTIONS, NOTHING_STORED
from autodeploy.cli import main
from autodeploy.kit.logs import configure_logging
from autodeploy.service.requests.callers import ANYONE, AuditLog
from tests import factories
from tests.integration.conftest import Site, quick_settings, running_app, shared_site
from tests.integration.test_api_teams import OWN_PAGE, routes_of

if TYPE_CHECKING:
    from autodeploy.service.store.database import Database


pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def audit(site: Site, **where: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await site.get("root", "/v1/audit", **where))["items"]
    return found


async def test_every_route_that_changes_something_is_named(site: Site) -> None:
    app = site.client._transport.app  # type: ignore[attr-defined]
    changing = {
        f"{method} {route.path}"
        for route in routes_of(app)
        for method in route.methods
        if method not in {"GET", "HEAD"}
    }
    assert changing == {*ACTIONS, *NOTHING_STORED}


async def test_who_did_what_is_found(site: Site) -> None:
    search = await site.search("vision-writer")
    search_id, plan = search["search"]["id"], search["plans"][0]
    address = f"/v1/searches/{search_id}"
    client = site.client
    await client.patch(address, json={"note": "x"}, headers=site.by("vision-fitter"))
    await client.post(address + "/cancel", headers=site.by("vision-writer"))  # finished: a conflict
    await client.patch(address, json={"note": "y"}, headers=site.by("speech-fitter"))  # not there for them
    await client.delete(address, headers=site.by("vision-reader"))  # may not
    await client.post("/v1/estimates", json=factories.spec_document(), headers=site.by("vision-writer"))  # no change
    await client.post("/v1/searches", json={}, headers=site.by("vision-writer"))  # no valid request
    run = await client.post(
        f"/v1/plans/{plan['plan_id']}/runs", json={"step_time_s": 150.0}, headers=site.by("vision-writer")
    )
    run_id = run.json()["run"]["id"]
    await client.delete(f"/v1/runs/{run_id}", headers=site.by("vision-writer"))
    await client.delete(address, headers=site.by("root"))

    found = [(e["author"], e["team"], e["action"], e["object_id"], e["status"]) for e in reversed(await audit(site))]
    assert found == [
        ("vision-writer", "vision", "search.create", search_id, 200),
        ("vision-fitter", "vision", "search.annotate", search_id, 200),
        ("vision-writer", "vision", "search.cancel", search_id, 409),
        ("speech-fitter", "speech", "search.annotate", search_id, 404),
        ("vision-reader", "vision", "refused DELETE", address, 403),
        ("vision-writer", "vision", "run.create", run_id, 201),
        ("vision-writer", "vision", "run.delete", run_id, 204),
        ("root", "operations", "search.delete", search_id, 204),
    ]
    newest = (await audit(site, object_id=run_id, action="run.create"))[0]
    assert newest["key_id"] == site.views["vision-writer"].id
    assert newest["client"] == "127.0.0.1"
    assert newest["detail"]["plan_id"] == plan["plan_id"]
    assert newest["detail"]["request_id"] == run.headers["x-request-id"]


async def test_the_log_is_an_admins_and_has_pages(site: Site) -> None:
    for name in ("vision-writer", "speech-writer", "vision-writer"):
        await site.search(name, top_k=2)
    refused = await site.client.get("/v1/audit", headers=site.by("vision-fitter"))
    assert refused.status_code == 403
    first = await site.get("root", "/v1/audit", limit=2, action="search.create")
    assert first["has_more"]
    rest = await site.get("root", first["next"])
    assert [e["author"] for e in (*first["items"], *rest["items"])] == [
        "vision-writer",
        "speech-writer",
        "vision-writer",
    ]
    assert not rest["has_more"]
    assert rest["next"] is None
    assert len(await audit(site, team="speech")) == 1
    assert len(await audit(site, author="vision-writer")) == 2
    assert len(await audit(site, key_id=site.views["speech-writer"].id)) == 1


async def test_what_pages_change_is_noted_alike(site: Site) -> None:
    client = site.client
    entered = await client.post("/login", data={"key": site.keys["vision-writer"]}, headers=OWN_PAGE)
    session = {"Cookie": entered.headers["set-cookie"].partition(";")[0]} | OWN_PAGE
    client.cookies.clear()
    made = await client.post(
        "/new?lang=zh", data={"form": "paste", "spec": json.dumps(factories.spec_document())}, headers=session
    )
    search_id = made.headers["location"].partition("?")[0].rpartition("/")[2]
    await client.post(f"/searches/{search_id}/notes", data={"tags": "", "note": "<b>seen</b>"}, headers=session)
    found = [(e["author"], e["action"], e["object_id"]) for e in reversed(await audit(site))]
    assert found == [
        ("vision-writer", "session.begin", ""),
        ("vision-writer", "search.create", search_id),
        ("vision-writer", "search.annotate", search_id),
    ]
    page = (await client.get(f"/searches/{search_id}?lang=en", headers=session)).text
    assert "Author: vision-writer · Team: vision" in page
    assert '<span class="help">Author: vision-writer</span>' in page
    listed = (await client.get("/?author=vision-writer", headers=session)).text
    assert f"/searches/{search_id}" in listed
    assert 'name="author" value="vision-writer"' in listed
    assert 'name="team"' not in listed
    assert 'data-t="Author"' in listed, "a column says who asked"
    assert 'data-t="Team"' not in listed
    for query, is_there in (("team=vision", True), ("team=speech", False), ("author=speech-writer", False)):
        listed = (await client.get(f"/?{query}", headers=site.by("root"))).text
        assert (f"/searches/{search_id}" in listed) is is_there, query
        assert 'name="team"' in listed
        assert ('data-t="Team"' in listed) is is_there


async def test_wrong_keys_are_slowed_down(site: Site) -> None:
    statuses = []
    for _ in range(12):
        answer = await site.client.post("/login", data={"key": "adk_" + "A" * 43}, headers=OWN_PAGE)
        statuses.append(answer.status_code)
    assert statuses == [401] * 10 + [429] * 2
    assert 0 < int(answer.headers["retry-after"]) <= 60
    right = await site.client.post("/login", data={"key": site.keys["vision-writer"]}, headers=OWN_PAGE)
    assert right.status_code == 429, "a right key is no way to find out"
    assert (await site.client.get("/v1/searches", headers=site.by("vision-writer"))).status_code == 200
    assert await audit(site) == [], "nobody known tried"


async def test_lines_of_the_log_say_who_and_from_where(sqlite_url: str) -> None:
    stream = io.StringIO()
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        configure_logging(quick_settings(sqlite_url))
        logging.getLogger().handlers[0].setStream(stream)  # type: ignore[attr-defined]
        async with shared_site(sqlite_url) as site:
            search = await site.search("vision-writer")
            await site.client.get("/v1/searches", headers={"Authorization": "Bearer adk_" + "A" * 43})
            await site.client.post("/login", data={"key": "adk_" + "A" * 43}, headers=OWN_PAGE)
            key_id = site.views["vision-writer"].id
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
        structlog.reset_defaults()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [(line["status"], line["key_id"], line["client"]) for line in requests][:2] == [
        (200, key_id, "127.0.0.1"),
        (401, "", "127.0.0.1"),
    ]
    (noted,) = [line for line in lines if line["event"] == "audit"]
    assert (noted["key_id"], noted["action"], noted["object_id"]) == (key_id, "search.create", search["search"]["id"])
    assert [line["client"] for line in lines if line["event"] == "login_refused"] == ["127.0.0.1"]


async def test_a_server_without_keys_notes_where_changes_come_from(database_url: str, database: Database) -> None:
    async with running_app(quick_settings(database_url)) as client:
        made = await client.post("/v1/searches", json=factories.spec_document(), headers={"Prefer": "wait=60"})
        (entry,) = (await client.get("/v1/audit")).json()["items"]
        assert (entry["key_id"], entry["client"]) == ("", "127.0.0.1")
        assert entry["object_id"] == made.json()["search"]["id"]
        assert (await client.post("/v1/nothing")).status_code == 404
        assert (await client.post("/searches/srch_%00%0a/cancel")).status_code == 404
        for address in ("/?author=%00", "/?model=%00&team=%00"):
            assert (await client.get(address)).status_code == 200
        for address in ("/searches/%00", "/plans/%00", "/compare?plans=a,%00"):
            assert (await client.get(address)).status_code == 404
        entries = (await client.get("/v1/audit")).json()["items"]
        assert [e["object_id"] for e in entries] == ["srch_??", entry["object_id"]]


def test_the_command_line_notes_and_lists(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AUTODEPLOY_DATABASE_URL", database_url)
    monkeypatch.setenv("LOGNAME", "ada")

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["autodeploy", *arguments])
        with pytest.raises(SystemExit) as caught:
            main.run()
        assert (caught.value.code or 0) == 0
        return capsys.readouterr().out

    run("keys", "create", "ci", "--team", "vision")
    (key,) = json.loads(run("keys", "ls", "--format", "json"))
    run("keys", "revoke", key["id"])
    found = json.loads(run("audit", "ls", "--format", "json"))
    assert [(e["author"], e["client"], e["action"], e["object_id"]) for e in found] == [
        ("ada", "command line", "key.revoke", key["id"]),
        ("ada", "command line", "key.create", key["id"]),
    ]
    assert found[1]["detail"] == {"key": "ci", "of_team": "vision", "scope": "read"}
    assert "key.revoke" in run("audit", "ls", "--object", key["id"], "--action", "key.revoke")
    assert "key.revoke" not in run("audit", "ls", "--author", "somebody else")
    run("audit", "prune", "--older-than", "0h")
    assert [e["action"] for e in json.loads(run("audit", "ls", "--format", "json"))] == ["audit.prune"]


def test_a_database_that_cannot_write_leaves_the_line(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlalchemy.exc import OperationalError

    def full() -> Any:
        raise OperationalError("INSERT", {}, Exception("disk full"))

    monkeypatch.setattr(database, "write", full)
    said: list[str] = []
    kept = SimpleNamespace(info=lambda event, **_: said.append(event), error=lambda event, **_: said.append(event))
    monkeypatch.setattr("autodeploy.service.requests.callers._log", lambda: kept)
    AuditLog(database).note(ANYONE, client="10.0.0.1", action="search.cancel", object_id="srch_1", status=202)
    assert said == ["audit", "audit_not_stored"]
