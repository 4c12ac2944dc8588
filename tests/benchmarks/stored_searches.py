"""`python -m tests.benchmarks.stored_searches`: lists, metrics, audit log and claims with a million stored searches.

One JSON line a figure, milliseconds of processor time, on SQLite and on PostgreSQL; exit code 1 where one is above its
limit. Rows are made by the
database itself: models keep to one profile, statuses and step times follow the model, authors come and go, so that most
pairs of filters meet nowhere and what is sorted by is not spread evenly over what is filtered by.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, insert, text

from api.http.metrics import Metrics
from autodeploy.analysis.intake import read_network_spec
from autodeploy.kit.logs import configure_logging
from autodeploy.kit.settings import Settings
from autodeploy.search import planner
from autodeploy.service.requests.callers import AuditFilter, AuditLog
from autodeploy.service.session import open_services
from autodeploy.service.store.base import first_id_at
from autodeploy.service.store.database import Database
from autodeploy.service.store.migration import upgrade
from autodeploy.service.store.plan_rows import result_columns
from autodeploy.service.store.queue import Queue
from autodeploy.service.store.search_list import NEWEST, SORTS, SearchFilter
from autodeploy.service.store.tables import ApiKeyRow, AuditRow, SearchRow, TagRow
from tests.faults.ledger import SPEC
from tests.support.figures import report
from tests.support.postgresql import KEEPING_SETTINGS, own_server, server_binaries

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import Connection

SEARCHES, WAITING, KEYS, REQUESTS = 1_000_000, 20_000, 40, 20
LIMIT_MS, CLAIM_LIMIT_MS = 150.0, 20.0
FILLED_CACHE_KB = 2_000_000
AUDIT_OF = 2  # searches for each entry of the audit log
# Of row `n`. Every tenth model and author has left: its rows are the oldest.
_DIGITS = "".join(
    f" || substr('0123456789abcdefghjkmnpqrstvwxyz', 1 + CAST((at_ms >> {5 * place}) & 31 AS integer), 1)"
    for place in range(9, -1, -1)
)
_DRAWN = (
    f"n, 'srch_'{_DIGITS} || substr(1000000 + n % 1000000 || '', 2) AS id, (n * 7919) % 10007 AS dice,"
    " CASE WHEN n % 10000 = 17 THEN 20 WHEN n < {searches} / 20 THEN 19 ELSE (n * 7919) % 10007 % 19 END AS model,"
    " CASE WHEN n < {searches} / 20 THEN {keys} - 1 ELSE n % ({keys} - 1) END AS who"
)
_PLANNED = "CASE WHEN model % 5 = 4 OR dice % 5 = 0 THEN NULL ELSE {} END"
_COLUMNS = {
    "id": "id",
    "status": "CASE WHEN model = 20 THEN 'cancelled' WHEN model % 5 = 4 THEN 'infeasible'"
    " WHEN dice % 5 = 0 THEN 'failed' WHEN dice % 2 = 0 THEN 'optimal' ELSE 'feasible' END",
    "model_name": "'model ' || model",
    "profile": "'profile ' || (model % 4)",
    "cluster": "'cluster ' || (model % 4)",
    "seq_length": "4096 * (1 + dice % 4)",
    "global_batch_size": "16 * (1 + dice % 64)",
    "num_npus": "8 * (1 + model)",
    "principal": "'key_' || who",
    "author": "'author ' || who",
    "team": "'team ' || (who % 8)",
    "num_plans": "0",
    "best_step_time_s": _PLANNED.format("(1 + model) * (0.5 + dice / 10007.0)"),
    "best_tokens_per_s_per_npu": _PLANNED.format("1000.0 / (1 + model) * (0.5 + dice / 10007.0)"),
    "best_mfu": _PLANNED.format("0.6 / (1 + model % 7) * (0.5 + dice / 10007.0)"),
    "gap": _PLANNED.format("CASE WHEN dice % 3 = 0 THEN NULL ELSE dice / 100070.0 END"),
    "attempts": "1",
}

_AUDIT = {
    "id": "'aud_' || substr(id, 6)",
    "key_id": "'key_' || who",
    "author": "'author ' || who",
    "team": "'team ' || (who % 8)",
    "object_id": "id",
}


@dataclass(frozen=True)
class Filled:
    """A database with so many searches, the newest of that moment."""

    url: str
    searches: int
    newest: datetime


def fill(url: str, searches: int) -> Filled:
    """Stores that many finished searches, a minute apart, and half as many entries of the audit log."""
    database = Database(url, pool_size=1)
    upgrade(database)
    newest = database.now()
    with database.write_engine.begin() as connection:
        if database.is_sqlite:  # else the journal gets the same pages of indexes again and again
            connection.exec_driver_sql(f"PRAGMA cache_size = -{FILLED_CACHE_KB}")
        made = _numbered(connection, searches, newest)
        _insert(connection, SearchRow, _COLUMNS | _dialect(connection), _like(newest), made)
        _insert(connection, TagRow, {"search_id": "id", "tag": "'common'"}, {}, f"{made} WHERE n % 3 > 0")
        _insert(connection, TagRow, {"search_id": "id", "tag": "'rare'"}, {}, f"{made} WHERE n % 10000 = 17")
        entry = {"status": 200, "client": "10.0.0.1", "action": "search.create"}
        _insert(connection, AuditRow, _AUDIT | _moment(connection), entry, f"{made} WHERE n % {AUDIT_OF} = 0")
        keys = [
            {"id": f"key_{n}", "name": f"author {n}", "key_hash": f"{n}", "team": f"team {n % 8}"} for n in range(KEYS)
        ]
        connection.execute(insert(ApiKeyRow), [key | {"scope": "write", "created_at": newest} for key in keys])
    if not database.is_sqlite:  # as PostgreSQL does by itself a minute later, in the midst of what is measured
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
    database.close()
    return Filled(url, searches, newest)


def _like(newest: datetime) -> dict[str, Any]:
    """What all rows share: of a real search, with less of a result."""
    spec = read_network_spec(SPEC, planner)
    found = planner.plan(spec)
    of_it = {name: getattr(found.search, name) for name in ("profile_hash", "engine_version")}
    said = {"note": "", "cancel_requested": False, "expected_s": 1.0, "reproducible": True}
    return of_it | said | {"spec": result_columns(found)["spec"], "result": {"padding": "x" * 256}}


def _insert(connection: Connection, table: Any, columns: dict[str, str], like: dict[str, Any], made: str) -> None:
    """Inserts rows with these expressions in `made`, and with values that all share."""
    target = table.__table__
    shared = [bindparam(f"like_{name}", value, type_=target.c[name].type) for name, value in like.items()]
    names = ", ".join((*columns, *like))
    values = ", ".join((*columns.values(), *(f":like_{name}" for name in like)))
    connection.execute(text(f"INSERT INTO {target.name} ({names}) SELECT {values} FROM {made}").bindparams(*shared))


def _moment(connection: Connection) -> dict[str, str]:
    if connection.dialect.name == "postgresql":
        return {"created_at": "to_timestamp(at_ms / 1000.0)"}
    return {"created_at": "strftime('%Y-%m-%d %H:%M:%f000', at_ms / 1000.0, 'unixepoch')"}


def _dialect(connection: Connection) -> dict[str, str]:
    at = _moment(connection)["created_at"]
    hashed = "encode(sha256((n % {0})::text::bytea), 'hex')"
    if connection.dialect.name != "postgresql":
        hashed = "printf('%08x%056x', ((n % {0}) * 2654435761) % 4294967296, n % {0})"
    moments = dict.fromkeys(("created_at", "updated_at", "started_at", "finished_at"), at)
    return moments | {"spec_hash": hashed.format(900_000)}


def _numbered(connection: Connection, searches: int, newest: datetime) -> str:
    """The rows `n`, `at_ms`, `id`, `dice`, `model`, `who`, as a FROM clause."""
    numbers = f"SELECT n FROM generate_series(0::bigint, {searches - 1}) AS s(n)"
    if connection.dialect.name != "postgresql":
        numbers = (
            "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers"
            f" WHERE n < {searches - 1}) SELECT n FROM numbers"
        )
    at = f"SELECT n, {int(newest.timestamp() * 1000)} - ({searches} - n) * 60000 AS at_ms FROM ({numbers}) AS a"
    return f"(SELECT at_ms, {_DRAWN.format(searches=searches, keys=KEYS)} FROM ({at}) AS b) AS made"


# -- what is asked of it ----------------------------------------------------------------------------------------------

# A filter that many, few and no rows pass, alone and beside each other.
TEAM, AUTHOR, OLD_AUTHOR, ODD_MODEL = "team 3", "author 3", f"author {KEYS - 1}", "model 19"
FILTERS: dict[str, dict[str, str]] = {
    "all": {},
    "team": {"team": TEAM},
    "author": {"author": AUTHOR},
    "author who left": {"author": OLD_AUTHOR},
    "no such author": {"author": "nobody"},
    "status": {"status": "feasible"},
    "rare status": {"status": "cancelled"},
    "profile and status": {"profile": "profile 1", "status": "infeasible"},
    "profile and status, none": {"profile": "profile 0", "status": "cancelled", "model": "model 1"},
    "model": {"model": "model 7"},
    "model that left": {"model": ODD_MODEL},
    "model and profile, none": {"model": "model 7", "profile": "profile 1"},
    "team and status": {"team": TEAM, "status": "failed"},
    "team, profile and status": {"team": TEAM, "profile": "profile 1", "status": "infeasible"},
    "team and model": {"team": TEAM, "model": "model 7"},
    "team and author, none": {"team": TEAM, "author": OLD_AUTHOR},
    "author and status, none": {"author": AUTHOR, "status": "queued"},
    "common tag": {"tag": "common"},
    "rare tag": {"tag": "rare"},
    "common tag and author": {"tag": "common", "author": AUTHOR},
}
AUDITED: dict[str, dict[str, str]] = {
    "all": {},
    "action": {"action": "search.create"},
    "no such action": {"action": "search.cancel"},
    "author": {"author": AUTHOR},
    "author who left": {"author": OLD_AUTHOR},
    "team and author, none": {"team": TEAM, "author": OLD_AUTHOR},
    "key": {"key_id": "key_3"},
    "object": {"object_id": "srch_nothing"},
}


class Clock:
    """Processor time of this process and of PostgreSQL's for it: other work on the machine does not count."""

    def __init__(self, database: Database) -> None:
        self._pids: list[int] = []
        if not database.is_sqlite:
            with database.read() as session:
                session.execute(text("SELECT pg_stat_clear_snapshot()"))
                query = (
                    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND client_port IS NOT NULL"
                )
                self._pids = list(session.scalars(text(query)))

    def now_s(self) -> float:
        """Seconds of all of them so far."""
        return time.process_time() + sum(_ran_s(pid) for pid in self._pids)


def _ran_s(pid: int) -> float:
    try:
        return int((Path("/proc") / str(pid) / "schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return 0.0


def p95_ms(ask: Callable[[], object], requests: int, clock: Clock) -> float:
    """The 95th percentile of so many answers, the first left out."""
    ask()
    times_ms = []
    for _ in range(max(2, requests)):
        begun_s = clock.now_s()
        ask()
        times_ms.append((clock.now_s() - begun_s) * 1e3)
    return statistics.quantiles(times_ms, n=20, method="inclusive")[-1]


def measure(filled: Filled, case: str, requests: int) -> list[str]:
    """Every filter in every order, metrics and audit log; names those above the limit."""
    slow = []

    def judge(figure: str, name: str, ask: Callable[[], object]) -> float:
        took_ms = p95_ms(ask, requests, clock)
        if took_ms > LIMIT_MS:
            report(figure, took_ms, "ms", f"{case}, {name}")
            slow.append(f"{case}, {figure}, {name}")
        return took_ms

    with open_services(Settings(database_url=filled.url)) as services:
        services.searches.list(limit=1)  # connected
        clock = Clock(services.database)
        searches, audit, metrics = services.searches, AuditLog(services.database), Metrics(services)
        middle = searches.list(limit=1, after=first_id_at(filled.newest)[:-4]).items
        orders = [NEWEST, *(f"{sign}{name}" for name, sign in product(SORTS, ("", "-")))]
        lists = [
            judge(
                "list_p95",
                f"{name} by {sort}",
                lambda said=said, sort=sort: searches.list(SearchFilter(**said), limit=50, sort=sort),
            )
            for (name, said), sort in product(FILTERS.items(), dict.fromkeys(orders))
        ]
        lists += [
            judge(
                "list_p95",
                f"far page by {sort}",
                lambda sort=sort: searches.list(limit=50, after=middle[0].id, sort=sort),
            )
            for sort in orders
            if middle
        ]
        report("list_p95_median", statistics.median(lists), "ms", f"{case}, {len(lists)} filters and orders")
        report("list_p95_slowest", max(lists), "ms", case)
        audits = [
            judge("audit_p95", name, lambda said=said: audit.list(AuditFilter(**said)))
            for name, said in AUDITED.items()
        ]
        report("audit_p95_slowest", max(audits), "ms", case)
        report("metrics_p95", judge("metrics_p95", "metrics", metrics.render), "ms", case)
    return slow


def sizes(database: Database, case: str) -> None:
    """The table of searches, and its indexes."""
    if not database.is_sqlite:
        with database.read() as session:
            for figure in ("pg_relation_size", "pg_indexes_size"):
                size = session.scalar(text(f"SELECT {figure}('searches')")) or 0
                report(figure, size / 1e6, "MB", f"{case}, searches")


def claims(filled: Filled, case: str, waiting: int, requests: int) -> list[str]:
    """Claims while so many wait, of KEYS keys; all are taken back."""
    database = Database(filled.url, pool_size=2)
    which = "id IN (SELECT id FROM searches ORDER BY id DESC LIMIT :waiting)"
    with database.write() as session:
        lengths = "CASE WHEN length(model_name) = 7 THEN 1.0 ELSE 100.0 END"
        session.execute(
            text(f"UPDATE searches SET status = 'queued', finished_at = NULL, expected_s = {lengths} WHERE {which}"),
            {"waiting": waiting},
        )
    if not database.is_sqlite:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("ANALYZE searches"))

    def claim() -> None:
        with database.write() as session:
            assert Queue(session).claim_next("benchmark", now=database.now()) is not None

    claim()
    took_ms = p95_ms(claim, requests, Clock(database))
    report("claim_p95", took_ms, "ms", f"{case}, {waiting} wait")
    database.close()
    return [f"{case}, claims"] if took_ms > CLAIM_LIMIT_MS else []


def main(arguments: list[str] | None = None) -> None:
    """All figures on both databases, or on the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--searches", type=int, default=SEARCHES)
    parser.add_argument("--waiting", type=int, default=WAITING)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="of each kind")
    parser.add_argument("--on", choices=("sqlite", "postgresql"), help="one database; default: both")
    wanted = parser.parse_args(arguments)
    configure_logging(Settings(log_level="warning"))
    os.environ["PGOPTIONS"] = "-c max_parallel_workers_per_gather=0"  # so that one process has all the work

    def run(url: str, case: str) -> list[str]:
        filled = fill(url, wanted.searches)
        database = Database(url)
        sizes(database, case)
        database.close()
        slow = measure(filled, case, wanted.requests)
        return slow + claims(filled, case, min(wanted.waiting, wanted.searches), wanted.requests)

    slow: list[str] = []
    if wanted.on != "postgresql":
        with tempfile.TemporaryDirectory(prefix="autodeploy_stored_") as directory:
            slow += run(f"sqlite:///{directory}/stored.db", "SQLite")
    if wanted.on != "sqlite" and (binaries := server_binaries()) is not None:
        with own_server(binaries, KEEPING_SETTINGS | {"shared_buffers": "512MB"}) as server:
            slow += run(server.dsn, "PostgreSQL")
    sys.stderr.writelines(f"above the limit: {each}\n" for each in slow)
    sys.exit(bool(slow))


if __name__ == "__main__":
    main()
