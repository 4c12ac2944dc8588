"""Teams: what one has is not there for another, whatever route is asked; runs of a write key move no prediction."""

from __future__ import annotations

import json
import re
from typing import Any

import anyio
import pytest
from fastapi.routing import APIRoute

from tests import factories
from tests.integration.conftest import WAIT, Site, shared_site
from tests.quick_planner import SLOW

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
NOBODYS = {
    "search_id": "srch_0nobodys",
    "plan_id": "p_0nobodys",
    "run_id": "run_0nobodys",
    "batch_id": "bat_0nobodys",
    "key_id": "key_0nobodys",
}
# Names of path parameters that stand for something which every caller may see.
EVERYBODYS = {"name"}
STRATEGY = {"tp": 8, "pp": 4}
SECRETS = ("vision-writer", "vision-fitter", "the eyes only note", "eyes-only")
CLUSTER = "hall-of-vision"


@pytest.mark.parametrize("shared", [True, False])
async def test_equal_specs_of_teams_meet_only_where_results_are_shared(database_url, shared):
    async with shared_site(database_url, share_results=shared) as site:
        models = [factories.DEEPSEEK_V3 | {"name": name} for name in ("a", "b", "c")]
        for model in models:
            first = await site.search("vision-writer", model=model)
            again = await site.search("vision-writer", model=model)
            other = await site.search("speech-writer", model=model)
            assert "cached" not in first
            assert again["cached"] is True
            assert other.get("cached", False) is shared


async def vision_works(site: Site, *, with_running: bool = False) -> dict[str, list[str]]:
    """A finished search with note and tags, a batch, a run that counts, perhaps a running search: ids by parameter."""
    found = await site.search("vision-writer", CLUSTER)
    search_id, plan_id = found["search"]["id"], found["plans"][0]["plan_id"]
    annotations = {"tags": ["eyes-only"], "note": "the eyes only note"}
    noted = await site.client.patch(f"/v1/searches/{search_id}", json=annotations, headers=site.by("vision-writer"))
    assert noted.status_code == 200
    spec = factories.spec_document()
    swept = {"spec": spec | {"cluster": spec["cluster"] | {"name": CLUSTER}}, "sweep": {"seq_length": [4096]}}
    batch = await site.client.post("/v1/batches", json=swept, headers=site.by("vision-writer"))
    assert batch.json()["status"] == "finished", batch.text
    run = await site.client.post(
        f"/v1/plans/{plan_id}/runs", json={"step_time_s": 140.0, "note": "eyes-only"}, headers=site.by("vision-fitter")
    )
    assert run.status_code == 201, run.text
    running = [await slow_search(site, "vision-writer")] if with_running else []
    return {
        "search_id": [search_id, *running],
        "plan_id": [plan_id],
        "run_id": [run.json()["run"]["id"]],
        "batch_id": [batch.json()["id"]],
        "key_id": [site.views["vision-reader"].id],
    }


async def slow_search(site: Site, name: str) -> str:
    """The id of a search that runs for a minute unless it is cancelled."""
    slow = factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": SLOW})
    running = await site.client.post("/v1/searches", json=slow, headers=site.by(name))
    found: str = running.json()["search"]["id"]
    while (await site.get(name, f"/v1/searches/{found}"))["status"] == "queued":
        await anyio.sleep(0.05)
    return found


async def seen(site: Site, theirs: dict[str, list[str]]) -> list[Any]:
    """What its own team sees of it; of the running search only what does not move."""
    finished, running = theirs["search_id"]
    last = await site.get("vision-reader", f"/v1/searches/{running}")
    return [
        await site.get("vision-reader", f"/v1/searches/{finished}"),
        last["status"],
        "cancel_requested" in last,
        last.get("note"),
        await site.get("vision-reader", f"/v1/runs/{theirs['run_id'][0]}"),
        await site.get("vision-reader", f"/v1/plans/{theirs['plan_id'][0]}/runs"),
        await site.get("vision-reader", f"/v1/batches/{theirs['batch_id'][0]}"),
    ]


# What each operation needs besides the ids in its path.
BODIES: dict[str, dict[str, Any]] = {
    "annotate_search": {"json": {"note": "not yours"}},
    "create_run": {"json": {"step_time_s": 141.0}},
    "expire_key": {"json": {"expires_in_days": 0}},
    "/keys/{key_id}/expire": {"data": {"days": "0"}},
    "export_plan": {"params": {"to": "json"}},
    "/searches/{search_id}/notes": {"data": {"tags": "x", "note": "not yours"}},
    "/plans/{plan_id}/{box}": {"data": {"strategy": "tp=8", "tp": "8"}},
}


def addressed(app: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path template and the rest of a request for every route, of the API and of the pages, that takes ids."""
    found = []
    for operation in routes_of(app):
        names = set(re.findall(r"\{(\w+)\}", operation.path)) - EVERYBODYS - {"box"}
        assert names <= set(NOBODYS), f"{operation.path}: whose are these? Say it in this test"
        if names:
            more = BODIES.get(operation.operation_id or operation.path, {})
            found += [(method, operation.path, more) for method in sorted(operation.methods)]
    return found


def routes_of(app: Any) -> list[APIRoute]:
    """Every route, those of included routers too."""
    found, rest = [], list(app.routes)
    while rest:
        route = rest.pop(0)
        if isinstance(route, APIRoute):
            found.append(route)
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        rest += inner or []
    return found


def filled(path: str, ids: dict[str, str]) -> list[str]:
    boxes = ("what-if", "why-not", "ablation") if "{box}" in path else ("",)
    return [path.format(**ids, box=box) for box in boxes]


def plain(text: str, ids: dict[str, str]) -> str:
    """An answer without what differs from one request to the next."""
    for name, value in ids.items():
        text = text.replace(value, name)
    return re.sub(r'"request_id":"\w+"', "", text)


async def test_no_route_tells_of_another_teams_things_or_touches_them(site: Site) -> None:
    theirs = await vision_works(site, with_running=True)
    before = await seen(site, theirs)
    app = site.client._transport.app  # type: ignore[attr-defined]
    asked = 0
    documented = (await site.get("root", "/openapi.json"))["paths"]
    routes = addressed(app)
    assert {path for path in documented if set(re.findall(r"\{(\w+)\}", path)) - EVERYBODYS} <= {r[1] for r in routes}
    for method, path, more in routes:
        for search_id in theirs["search_id"] if "search_id" in path else theirs["search_id"][:1]:
            ids = {name: found[0] for name, found in theirs.items()} | {"search_id": search_id}
            for address, unknown in zip(filled(path, ids), filled(path, NOBODYS), strict=True):
                headers = site.by("speech-fitter") | OWN_PAGE
                answer = await site.client.request(method, address, headers=headers, **more)
                nobodys = await site.client.request(method, unknown, headers=headers, **more)
                where = (method, address, answer.status_code, answer.text[:300])
                # A list of runs of a plan that nobody has is empty: runs outlive searches.
                empty = path == "/v1/plans/{plan_id}/runs" and method == "GET"
                assert answer.status_code == (200 if empty else 404), where
                assert not empty or answer.json()["items"] == []
                assert plain(answer.text, ids) == plain(nobodys.text, NOBODYS), where
                asked += 1
    assert asked >= 20
    assert await seen(site, theirs) == before


async def test_no_body_names_another_teams_plan(site: Site) -> None:
    theirs = await vision_works(site)
    own = (await site.search("speech-writer", top_k=2, global_batch_size=768))["plans"][0]["plan_id"]
    plan_id = theirs["plan_id"][0]
    spec = factories.spec_document() | {"strategy": STRATEGY}
    asked = {
        "/v1/why-not": {"plan_id": plan_id, "strategy": STRATEGY},
        "/v1/compare": {"plans": [own, plan_id]},
        "/v1/checks": {"spec": spec, "baseline": plan_id},
    }
    for address, body in asked.items():
        refused = await site.client.post(address, json=body, headers=site.by("speech-fitter"))
        assert refused.status_code == 404, (address, refused.text)
        answered = await site.client.post(
            address, json=json.loads(json.dumps(body).replace(own, plan_id)), headers=site.by("vision-writer")
        )
        assert answered.status_code != 404, (address, answered.text)
    page = await site.client.get(f"/compare?plans={own},{plan_id}", headers=site.by("speech-fitter"))
    assert page.status_code == 404


async def test_no_list_shows_another_teams_things(site: Site) -> None:
    theirs = await vision_works(site)
    hidden = [*SECRETS, CLUSTER, *(found for ids in theirs.values() for found in ids)]
    lists = ("/v1/searches", "/v1/searches?sort=gap", "/v1/searches?tag=eyes-only", "/v1/searches?author=vision-writer")
    lists += ("/v1/searches?status=optimal", "/v1/runs", f"/v1/runs?cluster={CLUSTER}", "/v1/clusters", "/")
    lists += ("/?tag=eyes-only", "/?sort=model", "/accuracy", f"/v1/runs?plan_id={theirs['plan_id'][0]}")
    for address in lists:
        shown = await site.client.get(address, headers=site.by("speech-fitter"))
        assert shown.status_code == 200
        text = shown.text.replace("tag=eyes-only", "").replace('value="eyes-only"', "")
        assert [secret for secret in hidden if secret in text] == [], address
    for address in ("/v1/searches", "/v1/searches?sort=gap", "/", "/v1/runs", "/v1/clusters", "/accuracy"):
        shown = await site.client.get(address, headers=site.by("vision-reader"))
        assert any(secret in shown.text for secret in hidden), address
    # Where a page goes on is not found out by asking, either.
    for search_id in (theirs["search_id"][0], NOBODYS["search_id"]):
        params = {"sort": "best_step_time_s", "after": search_id}
        gone = await site.client.get("/v1/searches", params=params, headers=site.by("speech-reader"))
        assert gone.status_code == 422


async def test_an_admin_sees_all_teams_and_each_of_them(site: Site) -> None:
    theirs = await vision_works(site)
    ours = (await site.search("speech-writer", top_k=2))["search"]["id"]
    (entry,) = (await site.get("vision-reader", f"/v1/batches/{theirs['batch_id'][0]}"))["items"]
    vision = {*theirs["search_id"], entry["search_id"]}
    ids = lambda page: {item["id"] for item in page["items"]}  # noqa: E731
    for sort in ("-created_at", "model"):
        assert ids(await site.get("root", "/v1/searches", sort=sort)) == {*vision, ours}
        assert ids(await site.get("root", "/v1/searches", sort=sort, team="speech")) == {ours}
        assert ids(await site.get("root", "/v1/searches", sort=sort, team="speech", model="deepseek-v3")) <= {ours}
        assert ids(await site.get("root", "/v1/searches", sort=sort, author="vision-writer")) == vision
        assert ids(await site.get("speech-reader", "/v1/searches", sort=sort, team="speech")) == {ours}
        nobodys = {"sort": sort, "author": "vision-writer", "team": "speech"}
        assert ids(await site.get("root", "/v1/searches", **nobodys)) == set()
    for address in ("/v1/searches", "/v1/runs"):
        refused = await site.client.get(address, params={"team": "vision"}, headers=site.by("speech-fitter"))
        assert refused.status_code == 403
        assert refused.json()["hint"] == "needs a key with scope admin"
    assert ids(await site.get("root", "/v1/runs", team="vision", author="vision-fitter")) == set(theirs["run_id"])
    assert ids(await site.get("root", "/v1/runs", team="speech")) == set()
    found = await site.get("root", f"/v1/searches/{theirs['search_id'][0]}")
    assert (found["author"], found["team"], found["note_by"]) == ("vision-writer", "vision", "vision-writer")
    address = f"/v1/searches/{await slow_search(site, 'vision-writer')}/cancel"
    assert (await site.client.post(address, headers=site.by("speech-fitter"))).status_code == 404
    assert (await site.client.post(address, headers=site.by("root"))).status_code == 202


async def test_a_team_shares_what_its_keys_make(site: Site) -> None:
    found = await site.search("vision-writer")
    address = f"/v1/searches/{found['search']['id']}"
    noted = await site.client.patch(address, json={"note": "seen"}, headers=site.by("vision-fitter"))
    assert noted.json()["note_by"] == "vision-fitter"
    tagged = await site.client.patch(address, json={"note": "seen", "tags": ["x"]}, headers=site.by("vision-writer"))
    assert tagged.json()["note_by"] == "vision-fitter", "who wrote the note, not who sent it again"
    assert (await site.client.delete(address, headers=site.by("vision-fitter"))).status_code == 403
    assert (await site.client.delete(address, headers=site.by("vision-writer"))).status_code == 204


async def test_a_copy_of_an_equal_search_tells_nothing_of_the_other(site: Site) -> None:
    found = await site.search("vision-writer")
    search_id = found["search"]["id"]
    noted = {"tags": ["eyes-only"], "note": "the eyes only note"}
    await site.client.patch(f"/v1/searches/{search_id}", json=noted, headers=site.by("vision-writer"))
    copied = await site.search("speech-writer")
    assert copied["cached"] is True
    assert copied["plans"] == found["plans"]
    own_id = copied["search"]["id"]
    plan_id = copied["plans"][0]["plan_id"]
    shown = [copied, await site.get("speech-reader", f"/v1/searches/{own_id}")]
    shown += [await site.get("speech-reader", address) for address in ("/v1/searches", f"/v1/plans/{plan_id}")]
    events = await site.client.get(f"/v1/searches/{own_id}/events", headers=site.by("speech-reader"))
    page = await site.client.get(f"/searches/{own_id}", headers=site.by("speech-reader"))
    for text in (*map(json.dumps, shown), events.text, page.text):
        assert [secret for secret in (*SECRETS, search_id, "vision") if secret in text] == []
    assert shown[1]["author"] == "speech-writer"
    assert shown[3]["search_id"] == own_id
    assert (await site.get("vision-reader", f"/v1/plans/{plan_id}"))["search_id"] == search_id


async def test_one_idempotency_key_of_two_teams_makes_two_searches(site: Site) -> None:
    ids = set()
    for name in ("vision-writer", "speech-writer", "vision-writer"):
        headers = site.by(name) | {"Idempotency-Key": "same"}
        made = await site.client.post("/v1/searches", json=factories.spec_document(), headers=headers)
        ids.add((name, made.json()["search"]["id"]))
    assert len({search_id for _, search_id in ids}) == len(ids) == 2


async def test_runs_of_a_write_key_move_nobodys_predictions(site: Site) -> None:
    before = await site.search("speech-writer")
    plan_id = before["plans"][0]["plan_id"]
    poisoned = []
    await site.search("vision-writer")
    for name, shift in (("speech-writer", 0.0), ("vision-writer", 0.5)):
        for step_s in range(30, 290, 20):
            address = f"/v1/plans/{plan_id}/runs"
            body = {"step_time_s": step_s + shift}
            made = await site.client.post(address, json=body, headers=site.by(name))
            assert made.status_code == 201
            assert (made.json()["cluster"], made.json()["reranked"]) == (None, [])
            poisoned.append(made.json()["run"])
    assert all(run["counts"] is False and run["error"] is not None for run in poisoned)
    assert (await site.get("root", "/v1/clusters"))["items"] == []
    for name in ("speech-writer", "vision-writer"):
        body = factories.spec_document()
        headers = site.by(name) | WAIT | {"Cache-Control": "no-cache"}
        after = (await site.client.post("/v1/searches", json=body, headers=headers)).json()
        assert after["search"]["profile_hash"] == before["search"]["profile_hash"]
        assert after["search"]["spec"]["cluster"]["overlay"] == "auto"
        assert (after["plans"], after["warnings"]) == (before["plans"], before["warnings"])
    # The writer takes back its own; nobody else of the team but with scope calibrate.
    address = f"/v1/runs/{poisoned[0]['id']}"
    other, _ = site.access.create("another", "write", team="speech")
    assert (await site.client.delete(address, headers={"Authorization": f"Bearer {other}"})).status_code == 403
    assert (await site.client.delete(address, headers=site.by("speech-writer"))).status_code == 204
    assert (
        await site.client.delete(f"/v1/runs/{poisoned[1]['id']}", headers=site.by("speech-fitter"))
    ).status_code == 204


async def test_a_calibrate_key_moves_them_and_says_so(site: Site) -> None:
    before = await site.search("vision-writer")
    plan = before["plans"][0]
    address, body = f"/v1/plans/{plan['plan_id']}/runs", {"step_time_s": 1.2 * plan["step_time_s"]}
    stored = await site.client.post(address, json=body, headers=site.by("vision-writer"))
    assert (stored.status_code, stored.json()["run"]["counts"]) == (201, False)
    counted = await site.client.post(address, json=body, headers=site.by("vision-fitter"))
    assert (counted.status_code, counted.json()["run"]["counts"]) == (200, True)
    run = counted.json()["run"]
    assert (run["id"], run["author"]) == (stored.json()["run"]["id"], "vision-writer")
    assert counted.json()["cluster"]["num_runs"] == 1
    assert counted.json()["cluster"]["changed_by"] == "vision-fitter"
    assert len(counted.json()["reranked"]) == 5
    assert (await site.get("vision-reader", f"/v1/runs/{run['id']}"))["counts"] is True
    assert (await site.client.delete(f"/v1/runs/{run['id']}", headers=site.by("vision-writer"))).status_code == 403

    after = await site.search("vision-writer")
    assert after["search"]["profile_hash"] != before["search"]["profile_hash"]
    (warning,) = [text for text in after["warnings"] if "measured runs changed" in text]
    assert "API key vision-fitter" in warning
    report = after["search"]["spec"]["cluster"]["overlay"]["report"]
    assert (report["runs"], [found["run"] for found in report["measured"]]) == ([run["id"]], [run["id"]])
    assert "stale" not in await site.get("vision-writer", f"/v1/searches/{after['search']['id']}")
    (cluster,) = (await site.get("vision-reader", "/v1/clusters"))["items"]
    assert (cluster["num_runs"], cluster["team"]) == (1, "vision")
    # Nothing of it reaches another team: neither numbers, nor ranks, nor a word.
    others = await site.search("speech-writer")
    assert others["search"]["profile_hash"] == before["search"]["profile_hash"]
    assert others["search"]["spec"]["cluster"]["overlay"] == "auto"
    assert others["plans"] == before["plans"]
    assert not [text for text in others["warnings"] if "measured runs changed" in text]
    assert "stale" not in await site.get("speech-writer", f"/v1/searches/{others['search']['id']}")
    assert (await site.get("speech-reader", "/v1/clusters"))["items"] == []

    # The same measurement of another team is another run.
    again = await site.client.post(address, json=body, headers=site.by("speech-fitter"))
    assert again.status_code in {201, 404}
    await site.client.delete(f"/v1/runs/{run['id']}", headers=site.by("vision-fitter"))
    assert (await site.client.get(f"/v1/runs/{run['id']}", headers=site.by("root"))).status_code == 404


async def test_equal_measurements_of_two_teams_are_two_runs(site: Site) -> None:
    plan_id = (await site.search("vision-writer"))["plans"][0]["plan_id"]
    await site.search("speech-writer")
    made = {}
    with anyio.fail_after(60):
        for name in ("vision-writer", "speech-writer"):
            body = {"step_time_s": 140.0}
            answer = await site.client.post(f"/v1/plans/{plan_id}/runs", json=body, headers=site.by(name))
            assert answer.status_code == 201
            made[name] = answer.json()["run"]
    assert made["vision-writer"]["id"] != made["speech-writer"]["id"]
    listed = await site.get("speech-reader", f"/v1/plans/{plan_id}/runs")
    assert [item["author"] for item in listed["items"]] == ["speech-writer"]
