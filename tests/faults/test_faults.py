"""Each fault at a seeded random moment: nothing is lost and nothing is done twice. `make soak` runs many more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import NO_POSTGRESQL
from tests.faults import faults
from tests.faults.ledger import Ledger
from tests.faults.outages import survive_outages
from tests.faults.service import running_service
from tests.support.postgresql import server_binaries

if TYPE_CHECKING:
    from tests.faults.faults import Fault, Outcome
    from tests.faults.service import Service

pytestmark = pytest.mark.fault

ROUNDS = 2
SEED = 143  # whose moments are early, in the middle and late


def nothing_lost_nothing_twice(outcome: Outcome, *, searches: int) -> None:
    audit = outcome.audit
    assert (audit.searches, audit.lost, audit.doubled) == (searches, 0, 0)


def survives(service: Service, ledger: Ledger, kinds: list[Fault]) -> None:
    """Each while searches come, wait, run and end: within as long as that takes here."""
    window_s = faults.undisturbed_s(ledger)
    for number, fault in enumerate(kinds, start=1):
        outcome = faults.survive(service, ledger, fault, rounds=1, seed=SEED + number, window_s=window_s)
        nothing_lost_nothing_twice(outcome, searches=faults.SEARCHES_A_FAULT)


def test_a_server_with_sqlite_survives(tmp_path):
    """Its pool process is killed, it is killed itself, its disk is full."""
    with running_service(f"sqlite:///{tmp_path / 'autodeploy.db'}", tmp_path, forked=True) as service:
        ledger = Ledger(service.database_url, service.urls)
        survives(service, ledger, [faults.kill_pool_process, faults.kill_server, faults.fill_disk])


def test_a_server_and_a_worker_on_postgresql_survive(tmp_path):
    """Pool process, worker and server are killed, connections are cut, PostgreSQL restarts."""
    binaries = server_binaries()
    if binaries is None:
        pytest.skip(NO_POSTGRESQL)
    with faults.service_with_own_postgresql(binaries, tmp_path, forked=True) as (service, server):
        ledger = Ledger(service.database_url, service.urls)
        kinds = [faults.kill_pool_process, faults.kill_worker, faults.kill_server, faults.cut_connections]
        survives(service, ledger, [*kinds, faults.restart_postgresql(server)])


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_one_key_at_two_servers_makes_one_search(request, tmp_path, database):
    sqlite = database == "sqlite"
    url = f"sqlite:///{tmp_path / 'autodeploy.db'}" if sqlite else request.getfixturevalue("empty_postgres_dsn")
    with running_service(url, tmp_path, num_servers=2, forked=True) as service:
        ledger = Ledger(service.database_url, service.urls)
        outcome = faults.one_key_at_two_servers(ledger, rounds=ROUNDS, seed=SEED)
        nothing_lost_nothing_twice(outcome, searches=ROUNDS)


def test_workers_poll_again_after_crashes_of_the_database(tmp_path):
    binaries = server_binaries()
    if binaries is None:
        pytest.skip(NO_POSTGRESQL)
    times = {"stalled_after_s": 2.4, "down_s": 0.6, "submit_s": 0.8}
    found = survive_outages(binaries, tmp_path, outages=ROUNDS, seed=SEED, forked=True, **times)
    assert (found.audit.lost, found.audit.doubled) == (0, 0)
    assert found.holds, found.delays_s
