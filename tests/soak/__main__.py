"""`python -m tests.soak`: faults, load, bad input, a large database; a JSON line a figure, exit code 1 if one fails."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.kit.logs import configure_logging
from autodeploy.kit.settings import Settings
from tests.faults import faults
from tests.faults.ledger import Ledger
from tests.faults.outages import survive_outages
from tests.faults.service import running_service
from tests.soak import enormous, load, stored_list, teams, tenants
from tests.support import malformed_specs
from tests.support.document_fuzz import MOST_CHARACTERS, fuzz, pumped_all
from tests.support.document_grammars import FORMATS
from tests.support.documented_answers import answering_app, run_phases
from tests.support.dominance import dominance, dominance_under_auto
from tests.support.figures import report
from tests.support.hostile_files import HOSTILE, LIMIT_S, refusal_s
from tests.support.postgresql import KEEPING_SETTINGS, fresh_database, own_server, server_binaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.faults.faults import Fault, Outcome
    from tests.faults.service import Service


def judge(outcome: Outcome, case: str) -> bool:
    """Reports what a kind of fault did; whether nothing was lost and nothing done twice."""
    report("faults", outcome.faults, "count", case)
    report("searches_lost", outcome.audit.lost, "count", case)
    report("searches_done_twice", outcome.audit.doubled, "count", case)
    report("runs_begun_anew", outcome.audit.retried, "count", case)
    report("writes_refused_for_space", outcome.audit.refused, "count", case)
    report("seconds_per_fault", outcome.seconds / outcome.faults, "s", case)
    return outcome.audit.lost == outcome.audit.doubled == 0


def faults_on_sqlite(directory: Path, rounds: int, seed: int) -> bool:
    """One server that runs searches itself."""
    with running_service(f"sqlite:///{directory / 'autodeploy.db'}", directory) as service:
        kinds: dict[str, Fault] = {
            "SIGKILL of a pool process of the server": faults.kill_pool_process,
            "SIGKILL of the server, embedded": faults.kill_server,
            "disk full on SQLite": faults.fill_disk,
        }
        ledger = Ledger(service.database_url, service.urls)
        return all(
            [
                judge(faults.survive(service, ledger, fault, rounds=rounds, seed=seed + number), case)
                for number, (case, fault) in enumerate(kinds.items())
            ]
        )


def faults_on_postgresql(directory: Path, rounds: int, seed: int) -> bool:
    """A server and a worker on a PostgreSQL server of their own."""
    with faults.service_with_own_postgresql(binaries(), directory) as (service, server):
        kinds: dict[str, Fault] = {
            "SIGKILL of a pool process of the worker": faults.kill_pool_process,
            "SIGKILL of the worker": faults.kill_worker,
            "SIGKILL of the server, distributed": faults.kill_server,
            "connections cut": faults.cut_connections,
            "PostgreSQL restarted": faults.restart_postgresql(server),
        }
        ledger = Ledger(service.database_url, service.urls)
        return all(
            [
                judge(faults.survive(service, ledger, fault, rounds=rounds, seed=seed + number), case)
                for number, (case, fault) in enumerate(kinds.items())
            ]
        )


def outages(directory: Path, rounds: int, seed: int) -> bool:
    """PostgreSQL crashes at random under two servers and two workers, with little patience and with the usual."""
    held = []
    for stalled_after_s in (4.0, 30.0):
        case = f"2 servers, 2 workers, stalled after {stalled_after_s:g} s"
        folder = directory / f"{stalled_after_s:g}"
        folder.mkdir()
        found = survive_outages(binaries(), folder, outages=rounds, seed=seed, stalled_after_s=stalled_after_s)
        report("outages", found.outages, "count", case)
        report("searches", found.audit.searches, "count", case)
        report("searches_lost", found.audit.lost, "count", case)
        report("searches_done_twice", found.audit.doubled, "count", case)
        report("runs_begun_anew", found.audit.retried, "count", case)
        report("worker_polls_again_slowest", max(found.delays_s), "s", f"{case}, {len(found.delays_s)} times")
        held.append(found.holds)
    return all(held)


def one_key(directory: Path, rounds: int, seed: int) -> bool:
    """Two servers on one database get the same idempotency key at once."""

    def submit(database_url: str, case: str) -> bool:
        with running_service(database_url, directory, num_servers=2) as service:
            ledger = Ledger(service.database_url, service.urls)
            return judge(faults.one_key_at_two_servers(ledger, rounds=rounds, seed=seed), f"one key, {case}")

    sqlite = submit(f"sqlite:///{directory / 'one_key.db'}", "SQLite")
    with own_server(binaries(), KEEPING_SETTINGS) as server:
        return submit(server.dsn, "PostgreSQL") and sqlite


def large_list(directory: Path, num_searches: int) -> bool:
    """The list with many stored searches, on both databases."""

    def run(database_url: str, case: str) -> bool:
        stored_list.fill(database_url, num_searches)
        with running_service(database_url, directory) as service:
            return stored_list.measure(service, num_searches, f"{case}, {num_searches} searches")

    sqlite = run(f"sqlite:///{directory / 'large.db'}", "SQLite")
    with own_server(binaries(), KEEPING_SETTINGS) as server, fresh_database(server.dsn, "large") as dsn:
        return run(dsn, "PostgreSQL") and sqlite


def many_clients(directory: Path, seconds: float, seed: int) -> bool:
    """200 clients at once while searches run: one server that runs them itself, and one with a worker."""

    def run(service: Service, case: str) -> bool:
        cached = load.measure_cached_post(service, case)
        return load.measure(service, seconds, case, seed=seed) and cached

    with running_service(f"sqlite:///{directory / 'load.db'}", directory) as service:
        sqlite = run(service, f"SQLite, {seconds:g} s")
    with (
        own_server(binaries(), KEEPING_SETTINGS) as server,
        running_service(server.dsn, directory, with_worker=True) as service,
    ):
        return run(service, f"PostgreSQL, {seconds:g} s") and sqlite


def enormous_specs(directory: Path, limit_s: float) -> bool:
    """Specs that are built to be enormous: memory, time limit and cancel are kept."""
    with running_service(f"sqlite:///{directory / 'enormous.db'}", directory) as service:
        return enormous.measure(service, list(enormous.SPECS), limit_s)


def fair_shares(directory: Path, seconds: float, seed: int, *, pretended: bool) -> bool:
    """Nine tenants before and after a tenth asks for a hundred deep searches, on PostgreSQL with two workers."""
    with (
        own_server(binaries(), KEEPING_SETTINGS) as server,
        tenants.tenants_of(server.dsn, directory, pretended=pretended) as callers,
    ):
        return tenants.measure(callers, seconds, seed=seed)


def two_teams(directory: Path) -> bool:
    """Teams on one service, on both databases: neither reaches what the other has."""
    with_keys = {"AUTODEPLOY_AUTH": "keys"}
    with running_service(f"sqlite:///{directory / 'teams.db'}", directory, changes=with_keys) as service:
        sqlite = teams.measure(service, "SQLite")
    with (
        own_server(binaries(), KEEPING_SETTINGS) as server,
        running_service(server.dsn, directory, with_worker=True, changes=with_keys) as service,
    ):
        return teams.measure(service, "PostgreSQL") and sqlite


def malformed(directory: Path, specs: int) -> bool:
    """Specs with mistakes: always refused with the place."""
    with malformed_specs.posting_app(f"sqlite:///{directory / 'malformed.db'}") as post:
        try:
            sent, slowest_s = malformed_specs.refuse_all(post, specs)
        except AssertionError as error:
            sys.stderr.write(f"{error}\n")
            report("malformed_specs_refused", 0, "count", "a spec was not refused as it should")
            return False
    report("malformed_specs_refused", sent, "count", "4xx with a pointer")
    report("malformed_spec_slowest", slowest_s, "s", "4xx with a pointer")
    return sent >= specs


def openapi(directory: Path, examples: int) -> bool:
    """schemathesis over every operation, on both databases: how many answers were as documented, and how many not."""

    def run(database_url: str, case: str) -> bool:
        with answering_app(database_url, with_keys=True) as app:
            found = run_phases(app, ("examples", "coverage", "fuzzing", "stateful"), examples)
        sys.stderr.writelines(f"{failure}\n" for failure in found.failures)
        report("openapi_requests", found.sent.total(), "count", case)
        report("openapi_answers_not_as_documented", len(found.failures), "count", case)
        return not found.failures

    sqlite = run(f"sqlite:///{directory / 'openapi.db'}", "SQLite")
    with own_server(binaries(), KEEPING_SETTINGS) as server:
        return run(server.dsn, "PostgreSQL") and sqlite


def hostile(_directory: Path) -> bool:
    """Hostile files: the slowest refusal."""
    times_s = {name: refusal_s(name) for name in HOSTILE}
    slowest = max(times_s, key=lambda name: times_s[name])
    report("hostile_files_refused", len(times_s), "count", "processor time below 1 s")
    report("hostile_file_slowest", times_s[slowest], "s", slowest)
    return times_s[slowest] < LIMIT_S


def documents(formats: Iterable[str], seconds: float, stride: int, seed: int) -> bool:
    """Generated documents of each format: read or refused, within 2 s of processor time and 300 MB."""
    held = []
    for name in formats:
        for found, case in (
            (pumped_all(name, stride), f"{name}, repeated to {MOST_CHARACTERS:,} characters"),
            (fuzz(name, seconds, seed), f"{name}, generated for {seconds:g} s"),
        ):
            sys.stderr.writelines(f"{fault}\n" for fault in found.faults)
            report("documents_read", found.accepted, "count", case)
            report("documents_refused", found.refused, "count", case)
            report("documents_that_end_in_a_traceback", found.tracebacks, "count", case)
            report("document_slowest", found.most_s, "s", case)
            report("document_largest", found.most_mb, "MB", case)
            held.append(found.holds)
    return all(held)


def binaries() -> Path:
    """Where PostgreSQL's programs are."""
    found = server_binaries()
    if found is None:
        sys.exit("PostgreSQL is not here (Debian: postgresql)")
    return found


def every_record() -> bool:
    """No published strategy is predicted to be faster than the best plan for its model, cluster, batch and features."""
    found = [dominance(record, whole=True) for record in shipped_records()]
    comparable = [each for each in found if each.comparable]
    report("records_compared_with_the_best_plan", len(comparable), "records", f"of {len(found)}")
    beaten = [each for each in comparable if not each.holds]
    report("records_faster_than_the_best_plan", len(beaten), "records", ", ".join(each.record for each in beaten))
    gains = sorted(each.published_s / each.best_s for each in comparable if each.best_s)
    report("median_gain_of_the_best_plan", gains[len(gains) // 2] - 1.0, "fraction", "over the published strategy")
    auto = [each for each in map(dominance_under_auto, shipped_records()) if each.comparable]
    report("records_compared_with_the_best_plan_under_auto", len(auto), "records", "features of the run's framework")
    slower = [each for each in auto if not each.holds]
    report("records_faster_than_the_best_plan_under_auto", len(slower), "records", ", ".join(e.record for e in slower))
    return not beaten and not slower


def main() -> None:
    """All figures, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="faults of each kind")
    parser.add_argument("--outages", type=int, default=30, help="crashes of PostgreSQL under two workers")
    parser.add_argument("--searches", type=int, default=100_000, help="stored searches of the large list")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load by many clients")
    parser.add_argument("--tenants-seconds", type=float, default=600.0, help="of nine tenants, half of it with a tenth")
    parser.add_argument("--pretended", action="store_true", help="tenants' searches sleep: for a busy machine")
    parser.add_argument("--specs", type=int, default=10_000, help="malformed specs")
    parser.add_argument("--examples", type=int, default=200, help="generated requests of each operation")
    parser.add_argument("--documents-seconds", type=float, default=60.0, help="of generated documents of each format")
    parser.add_argument("--formats", nargs="*", choices=FORMATS, default=list(FORMATS), help="of generated documents")
    parser.add_argument("--stride", type=int, default=1, help="repeated pieces of documents: one of so many")
    parser.add_argument("--limit", type=float, default=enormous.LIMIT_S, help="time limit of enormous searches")
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument(
        "only",
        nargs="*",
        help="sqlite postgresql outages one_key load enormous tenants teams malformed openapi hostile documents "
        "dominance list; default: all",
    )
    wanted = parser.parse_args()
    configure_logging(Settings(log_level="warning"))
    parts: dict[str, Callable[[Path], bool]] = {
        "sqlite": lambda directory: faults_on_sqlite(directory, wanted.rounds, wanted.seed),
        "postgresql": lambda directory: faults_on_postgresql(directory, wanted.rounds, wanted.seed),
        "outages": lambda directory: outages(directory, wanted.outages, wanted.seed),
        "one_key": lambda directory: one_key(directory, wanted.rounds, wanted.seed),
        "load": lambda directory: many_clients(directory, wanted.seconds, wanted.seed),
        "enormous": lambda directory: enormous_specs(directory, wanted.limit),
        "tenants": lambda directory: fair_shares(
            directory, wanted.tenants_seconds, wanted.seed, pretended=wanted.pretended
        ),
        "teams": two_teams,
        "malformed": lambda directory: malformed(directory, wanted.specs),
        "openapi": lambda directory: openapi(directory, wanted.examples),
        "hostile": hostile,
        "documents": lambda _: documents(wanted.formats, wanted.documents_seconds, wanted.stride, wanted.seed),
        "dominance": lambda _: every_record(),
        "list": lambda directory: large_list(directory, wanted.searches),
    }
    held = []
    for name in wanted.only or parts:
        with tempfile.TemporaryDirectory(prefix="autodeploy_soak_") as directory:
            held.append(parts[name](Path(directory)))
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
