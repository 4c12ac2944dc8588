"""The list of searches over a large database: every filter, first page and far page, through the running server."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
from sqlalchemy import insert, text

from autodeploy.analysis.intake import read_network_spec
from autodeploy.search import planner
from autodeploy.service.store.base import first_id_at, utc_now
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.service.store.plan_rows import plan_rows, result_columns
from autodeploy.service.store.search_list import SORTS
from autodeploy.service.store.tables import EventRow, PlanRow, SearchRow, TagRow
from tests.faults.ledger import SPEC
from tests.support.figures import report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.service import Service

BATCH = 1000
REQUESTS = 40
LIMIT_MS = 50.0
MODELS = ("deepseek-v3", "qwen3-235b-a22b", "llama3-70b", "pangu-ultra-moe-718b")
STATUSES = ("optimal", "feasible", "infeasible", "failed")
FIGURES = ("best_step_time_s", "best_tokens_per_s_per_npu", "best_mfu", "gap")
EVERY_RARE = 10_000  # one search in so many has the rare model, status and tag


def fill(database_url: str, num_searches: int) -> None:
    """Stores that many finished searches, a minute apart, with the documents of a real one."""
    database = Database(database_url, pool_size=1)
    upgrade(database)
    spec = read_network_spec(SPEC, planner)
    found = planner.plan(spec)
    search = result_columns(found) | {
        name: getattr(found.search, name) for name in ("spec_hash", "profile_hash", "engine_version")
    }
    plan = _row_values(PlanRow, plan_rows("", found.plans[:1])[0])
    newest = utc_now()
    for first in range(0, num_searches, BATCH):
        numbers = range(first, min(first + BATCH, num_searches))
        rows = [_search(number, newest - timedelta(minutes=num_searches - number), search) for number in numbers]
        with database.write() as session:
            session.execute(insert(SearchRow), rows)
            session.execute(insert(PlanRow), [plan | {"search_id": row["id"]} for row in rows])
            session.execute(insert(TagRow), list(_tags(numbers, rows)))
            session.execute(insert(EventRow), [_event(row, seq) for row in rows for seq in (1, 2, 3)])
    if not database.is_sqlite:  # as PostgreSQL does by itself a minute later, in the midst of what is measured
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    database.close()


def measure(service: Service, num_searches: int, case: str) -> bool:
    """Reports the slowest and the median answer for each filter; whether all stay within the limit."""
    moment = (utc_now() - timedelta(minutes=num_searches // 2)).isoformat()
    queries: dict[str, dict[str, Any]] = {
        "first page": {},
        "100 a page": {"limit": 100},
        "far page": {"after": first_id_at(utc_now() - timedelta(minutes=num_searches * 0.9))},
        "model": {"model": MODELS[0]},
        "rare model": {"model": "rare"},
        "no such model": {"model": "nothing"},
        "profile": {"profile": "ascend-800t-a2"},
        "status": {"status": "feasible"},
        "rare status": {"status": "cancelled"},
        "tag": {"tag": "common"},
        "rare tag": {"tag": "rare"},
        "model and status": {"model": MODELS[0], "status": "feasible"},
        "model and rare status": {"model": MODELS[0], "status": "cancelled"},
        "tag and model": {"tag": "common", "model": MODELS[1]},
        "tag and rare model": {"tag": "common", "model": "rare"},
        "far page of a tag": {"tag": "common", "after": first_id_at(utc_now() - timedelta(minutes=num_searches * 0.9))},
        "tag and rare status": {"tag": "other", "status": "cancelled"},
        "rare tag and other model": {"tag": "rare", "model": MODELS[1]},
        **{f"by {name}": {"sort": name} for name in SORTS},
        **{f"by -{name}": {"sort": f"-{name}"} for name in SORTS},
        "by gap and model": {"sort": "gap", "model": MODELS[0]},
        "by -best_mfu and status": {"sort": "-best_mfu", "status": "feasible"},
        "by num_npus and rare model": {"sort": "num_npus", "model": "rare"},
        "by -gap and rare tag": {"sort": "-gap", "tag": "rare"},
        "by best_step_time_s, tag and model": {"sort": "best_step_time_s", "tag": "common", "model": MODELS[1]},
        "by gap, no such model": {"sort": "gap", "model": "nothing"},
        "created": {"created_before": moment},
        "created and rare model": {"created_after": moment, "model": "rare"},
    }
    within = True
    with httpx.Client(base_url=service.urls[0], timeout=30) as client:
        middle = client.get("/v1/searches", params={"limit": 1, "created_before": moment}).json()["items"][0]["id"]
        queries |= {f"far page by {name}": {"sort": name, "after": middle} for name in SORTS}
        for name, parameters in queries.items():
            times_ms = []
            for _ in range(REQUESTS):
                started_s = time.perf_counter()
                client.get("/v1/searches", params=parameters).raise_for_status()
                times_ms.append((time.perf_counter() - started_s) * 1e3)
            p95_ms = statistics.quantiles(times_ms, n=20)[-1]
            report("list_median", statistics.median(times_ms), "ms", f"{case}, {name}")
            report("list_p95", p95_ms, "ms", f"{case}, {name}")
            within = within and p95_ms <= LIMIT_MS
    return within


def _row_values(table: Any, row: Any) -> dict[str, Any]:
    return {column.name: getattr(row, column.name) for column in table.__table__.columns}


def _search(number: int, created_at: Any, values: dict[str, Any]) -> dict[str, Any]:
    rare = number % EVERY_RARE == 17
    return values | {
        "id": f"{first_id_at(created_at)}{number:06}",
        "created_at": created_at,
        "updated_at": created_at,
        "started_at": created_at,
        "finished_at": created_at,
        "status": "cancelled" if rare else STATUSES[number % len(STATUSES)],
        "model_name": "rare" if rare else MODELS[number // 7 % len(MODELS)],
        "profile": ("ascend-800t-a2", "cloudmatrix-384")[number % 2],
        "seq_length": 4096,
        "global_batch_size": 16,
        "num_npus": None if number % 11 == 0 else 8 << number % 9,
        **_figures(number, values),
        "note": f"run {number}",
        "attempts": 1,
        "cancel_requested": False,
    }


def _figures(number: int, values: dict[str, Any]) -> dict[str, Any]:
    """Figures that differ from search to search; one in five found no plan."""
    if number % 5 == 0:
        return dict.fromkeys(FIGURES)
    factor = 0.5 + (number * 7919 % 10_007) / 10_007
    return {name: factor * (values[name] or 1.0) for name in FIGURES}


def _tags(numbers: range, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, row in zip(numbers, rows, strict=True):
        yield {"search_id": row["id"], "tag": "common" if number % 3 else "other"}
        if number % EVERY_RARE == 17:
            yield {"search_id": row["id"], "tag": "rare"}


def _event(row: dict[str, Any], seq: int) -> dict[str, Any]:
    status = ("queued", "running", row["status"])[seq - 1]
    return {
        "search_id": row["id"],
        "seq": seq,
        "created_at": row["created_at"],
        "kind": "status",
        "data": {"status": status},
    }
