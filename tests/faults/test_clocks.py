"""Processes whose clocks are two minutes apart run one queue: only what has died is taken over."""

from __future__ import annotations

from typing import Any

import pytest

from tests import factories
from tests.faults.ledger import Ledger
from tests.faults.service import running_service
from tests.quick_planner import LASTING
from tests.support.forked_processes import CLOCK_AHEAD_S, MACHINE

pytestmark = pytest.mark.fault

AHEAD_S = ("-120", "120")
# A plan of more than two seconds, twice as long as a heartbeat may be late here; nothing is computed in them.
SPEC: dict[str, Any] = factories.spec_document(model=factories.DEEPSEEK_V3 | {"name": LASTING})


def test_workers_on_machines_with_other_clocks_leave_each_other_s_searches(empty_postgres_dsn, tmp_path):
    places = [{CLOCK_AHEAD_S: ahead, MACHINE: f"m{number}"} for number, ahead in enumerate(AHEAD_S)]
    with running_service(
        empty_postgres_dsn, tmp_path, with_worker=True, num_workers=2, places=places, forked=True, quick=True
    ) as service:
        ledger = Ledger(service.database_url, service.urls, SPEC)
        ledger.submit([f"both-{number}" for number in range(4)])
        audit = ledger.settle()
        assert (audit.searches, audit.lost, audit.doubled, audit.retried) == (4, 0, 0, 0)
        assert service.worker is not None
        ledger.submit(["lost-1", "lost-2"])
        service.worker.kill()  # its machine is gone with it: only its silence tells
        audit = ledger.settle()
        assert (audit.searches, audit.lost, audit.doubled) == (6, 0, 0)
        assert audit.retried <= 1


def test_servers_on_one_file_with_other_clocks_leave_each_other_s_searches(tmp_path):
    places = [{CLOCK_AHEAD_S: ahead} for ahead in AHEAD_S]
    url = f"sqlite:///{tmp_path / 'autodeploy.db'}"
    with running_service(url, tmp_path, num_servers=2, places=places, forked=True, quick=True) as service:
        ledger = Ledger(service.database_url, service.urls, SPEC)
        ledger.submit([f"both-{number}" for number in range(4)])
        audit = ledger.settle()
        assert (audit.searches, audit.lost, audit.doubled, audit.retried) == (4, 0, 0, 0)
        ledger.submit(["lost-1", "lost-2"])
        service.servers[0].kill()
        audit = ledger.settle()
        assert (audit.searches, audit.lost, audit.doubled) == (6, 0, 0)
        assert audit.retried <= 1
