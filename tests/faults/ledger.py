"""What clients asked for and what became of it: nothing may be lost, nothing done twice.

Clients behave as the documentation tells them: every submission has an idempotency key, and a request that was not
answered is sent again with the same key.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import httpx

from autodeploy.kit.settings import Settings
from autodeploy.service.session import open_services
from autodeploy.service.store.database import DATABASE_ERRORS
from autodeploy.specs.planset import FINISHED
from tests.support import plain_http

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.service.session import Services

# A real plan of a tenth of a second in a warm process and half a second in a new one.
SPEC: dict[str, Any] = {
    "model": "qwen3-0.6b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 16},
    "search": {"effort": 0.02, "top_k": 2, "risk": "neutral"},
}
PATIENCE_S = 180.0
UNAVAILABLE, STORAGE_FULL = 503, 507
# One life: it waits, runs, perhaps waits again after its runner died, and ends once.
LIFE = re.compile(r"queued (running queued )*running (optimal|feasible) ")


@dataclass(frozen=True)
class Audit:
    """What the database says of what was asked."""

    searches: int = 0
    lost: int = 0
    doubled: int = 0
    retried: int = 0
    refused: int = 0

    def since(self, before: Audit) -> Audit:
        """What was added after an earlier one."""
        values = zip(astuple(self), astuple(before), strict=True)
        return Audit(*(now - then for now, then in values))


class Ledger:
    """The clients of one service."""

    def __init__(
        self, database_url: str, urls: list[str], spec: dict[str, Any] = SPEC, *, one_answer: bool = True
    ) -> None:
        """`one_answer`: all that run a search are of one version, so that equal searches have equal plans."""
        self._spec = spec
        self._one_answer = one_answer
        self._settings = Settings(database_url=database_url)
        self._urls = urls
        self._answers: dict[str, set[str]] = {}
        self._known: set[str] = set()
        self._refused: Counter[int] = Counter()
        self._pending = 0
        self.audit = Audit()

    def submit(self, keys: list[str], *, copies: int = 1) -> None:
        """Submits a search for every key, `copies` times at once over all servers, until every request is answered."""
        asked = [(key, copy) for key in keys for copy in range(copies)]
        with ThreadPoolExecutor(len(asked)) as clients:
            for key, search_id in clients.map(lambda item: (item[0], self._submit(*item)), asked):
                self._answers.setdefault(key, set()).add(search_id)

    def settle(self) -> Audit:
        """Waits until all searches are finished and judges them; gives up when for long none has finished."""
        with open_services(self._settings) as services:
            audit = _patiently(lambda: self._audit_when_finished(services), lambda: self._pending)
        assert isinstance(audit, Audit), f"{self._pending} searches wait or run, and none finished in {PATIENCE_S} s"
        self.audit = audit
        return audit

    def _submit(self, key: str, copy: int) -> str:
        """The id of the search that key makes; asks again, the server of that moment, until there is an answer."""
        headers = {"Idempotency-Key": key, "Cache-Control": "no-cache"}
        end_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < end_s:
            url = self._urls[copy % len(self._urls)]
            try:
                answer = plain_http.post(f"{url}/v1/searches", json=self._spec, headers=headers, timeout=20)
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            if answer.status_code in {200, 202}:
                return str(answer.json()["search"]["id"])
            if answer.status_code not in {UNAVAILABLE, STORAGE_FULL}:
                raise AssertionError(f"{answer.status_code}: {answer.text}")
            self._refused[answer.status_code] += 1
            time.sleep(0.1)
        raise AssertionError(f"no answer to {key} in {PATIENCE_S} s")

    def _audit_when_finished(self, services: Services) -> Audit | None:
        ids = {search_id for found in self._answers.values() for search_id in found}
        pending = [each for each in ids - self._known if services.searches.find_status(each) not in {*FINISHED, None}]
        self._pending = len(pending)
        if pending:
            return None
        self._known = ids
        stored = _all_ids(services)
        lost = retried = doubled = 0
        expected = None
        for search_id in sorted(ids & stored):
            events = services.searches.events(search_id)
            statuses = [event.data["status"] for event in events if event.kind == "status"]
            life = "".join(f"{status} " for status in statuses)
            plans = [plan.plan_id for plan in services.searches.plans(search_id)]
            expected = expected or plans
            whole = [event.seq for event in events] == list(range(1, len(events) + 1))
            lost += not (whole and plans and (plans == expected or not self._one_answer))
            doubled += LIFE.fullmatch(life) is None
            retried += statuses.count("running") - 1
        lost += len(ids - stored)
        doubled += len(stored - ids) + sum(len(found) - 1 for found in self._answers.values())
        return Audit(len(ids), lost, doubled, retried, self._refused[STORAGE_FULL])


def _all_ids(services: Services) -> set[str]:
    ids: set[str] = set()
    after = None
    while True:
        page = services.searches.list(limit=100, after=after)
        ids.update(item.id for item in page.items)
        after = page.after
        if after is None:
            return ids


def _patiently(look: Callable[[], Audit | None], pending: Callable[[], int]) -> Audit | None:
    """What the look gives; None when the number of those that are pending did not fall for long."""
    fewest, end_s = None, time.monotonic() + PATIENCE_S
    while time.monotonic() < end_s:
        try:
            if audit := look():
                return audit
        except DATABASE_ERRORS:
            pass  # it restarts
        if fewest is None or pending() < fewest:
            fewest, end_s = pending(), time.monotonic() + PATIENCE_S
        time.sleep(0.03)
    return None
