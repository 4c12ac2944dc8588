"""Two teams on one service: neither reads or changes what the other has; runs of a write key move nobody's plans."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

import httpx

from autodeploy.service.requests.callers import AccessService
from autodeploy.service.store.database import Database
from tests.support.figures import report

if TYPE_CHECKING:
    from tests.faults.service import Service

SPEC: Final[dict[str, Any]] = {
    "model": "llama2-70b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 32},
    "training": {"seq_length": 4096, "global_batch_size": 512},
    "search": {"effort": "fast"},
}
POISONED_S: Final = range(30, 290, 20)
# Bodies of operations that take one besides the ids in their path.
BODIES: Final[dict[str, dict[str, Any]]] = {
    "annotate_search": {"json": {"note": "not yours", "tags": []}},
    "create_run": {"json": {"step_time_s": 100.0}},
    "export_plan": {"params": {"to": "json"}},
}
PATIENCE_S: Final = 180.0


def measure(service: Service, case: str) -> bool:
    """Reports what one team could reach of another's, and how far made-up runs moved its predictions; both none."""
    keys = _keys(service.database_url)
    clients = {
        name: httpx.Client(base_url=service.urls[0], headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S)
        for name, key in keys.items()
    }
    try:
        reached, asked = _reached(clients)
        moved, warned = _moved(clients)
        unnamed = _unnamed(clients)
    finally:
        for client in clients.values():
            client.close()
    report("requests_for_another_teams_things", asked, "count", case)
    report("of_which_answered", reached, "count", case)
    report("prediction_moved_by_runs_of_a_write_key", moved, "fraction", f"{case}, {len(POISONED_S)} made-up runs")
    report("changes_without_a_name_in_the_audit_log", unnamed, "count", case)
    report("plans_that_say_who_moved_them", warned, "count", f"{case}, of 1 after a run of a calibrate key")
    return asked > 0 and reached == 0 and moved == 0.0 and unnamed == 0 and warned == 1


def _keys(database_url: str) -> dict[str, str]:
    database = Database(database_url, pool_size=1)
    try:
        access = AccessService(database)
        return {
            "writer": access.create("writer", "write", team="vision")[0],
            "fitter": access.create("fitter", "calibrate", team="vision")[0],
            "other": access.create("other", "calibrate", team="speech")[0],
            "root": access.create("root", "admin")[0],
        }
    finally:
        database.close()


def _planned(client: httpx.Client, *, anew: bool = False) -> dict[str, Any]:
    headers = {"Prefer": "wait=120"} | ({"Cache-Control": "no-cache"} if anew else {})
    answer = client.post("/v1/searches", json=SPEC, headers=headers)
    end_s = time.monotonic() + 5 * PATIENCE_S
    while answer.is_success and answer.json()["status"] in {"queued", "running"} and time.monotonic() < end_s:
        answer = client.get(f"/v1/searches/{answer.json()['search']['id']}", headers={"Prefer": "wait=60"})
    found: dict[str, Any] = answer.json()
    assert found.get("plans"), answer.text
    return found


def _reached(clients: dict[str, httpx.Client]) -> tuple[int, int]:
    """Of the requests for what another team has, on every operation that takes an id: how many did not answer 404."""
    search = _planned(clients["writer"])
    plan_id = search["plans"][0]["plan_id"]
    run = clients["writer"].post(f"/v1/plans/{plan_id}/runs", json={"step_time_s": 29.0}).json()["run"]
    swept = {"spec": SPEC, "sweep": {"seq_length": [4096]}}
    batch = clients["writer"].post("/v1/batches", json=swept).json()
    ids = {"search_id": search["search"]["id"], "plan_id": plan_id, "run_id": run["id"], "batch_id": batch["id"]}
    reached = asked = 0
    for path, methods in clients["root"].get("/openapi.json").json()["paths"].items():
        names = set(re.findall(r"\{(\w+)\}", path))
        if not names or names - set(ids):
            continue
        for method, operation in methods.items():
            answer = clients["other"].request(method, path.format(**ids), **BODIES.get(operation["operationId"], {}))
            empty = operation["operationId"] == "list_runs_of_plan" and answer.json().get("items") == []
            reached += answer.status_code != 404 and not empty
            asked += 1
    reached += clients["writer"].get(f"/v1/searches/{ids['search_id']}").json() != search
    return reached, asked


def _moved(clients: dict[str, httpx.Client]) -> tuple[float, int]:
    """How far runs of a write key moved the best plan of another team; whether those of a calibrate key are told."""
    before = _planned(clients["other"], anew=True)
    plan = before["plans"][0]
    for step_s in POISONED_S:
        answer = clients["writer"].post(f"/v1/plans/{plan['plan_id']}/runs", json={"step_time_s": float(step_s)})
        assert answer.status_code == 201, answer.text
    after = _planned(clients["other"], anew=True)
    moved = abs(after["plans"][0]["step_time_s"] / plan["step_time_s"] - 1.0)
    if after["search"]["profile_hash"] != before["search"]["profile_hash"] or after["warnings"] != before["warnings"]:
        moved = max(moved, 1.0)
    body = {"step_time_s": 1.1 * plan["step_time_s"]}
    counted = clients["fitter"].post(f"/v1/plans/{plan['plan_id']}/runs", json=body)
    assert counted.status_code in {200, 201}, counted.text
    warnings = _planned(clients["other"])["warnings"]
    return moved, sum("API key fitter" in warning for warning in warnings)


def _unnamed(clients: dict[str, httpx.Client]) -> int:
    """Entries of the audit log that lack who, from where or what."""
    entries = clients["root"].get("/v1/audit", params={"limit": 100}).json()["items"]
    assert entries, "changes were made"
    told = ("key_id", "author", "team", "client", "action", "object_id")
    return sum(not all(entry[name] for name in told) for entry in entries)
