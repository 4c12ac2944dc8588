"""Webhooks: every end is told of, signed, again where it fails, once at a time, and nobody waits for a receiver."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.service.requests.callers import AccessService
from autodeploy.service.session import Services, open_services
from autodeploy.service.store.base import utc_now
from autodeploy.service.store.events import Deliveries
from autodeploy.service.store.queue import Queue
from autodeploy.service.webhooks.sending import PER_ORIGIN, WebhookSender, team_secret
from autodeploy.service.webhooks.service import Targets
from tests import factories
from tests.integration.conftest import QUICK, eventually, named, quick_settings, running_app, status_is
from tests.quick_planner import CRASHES, FAILS, SLOW
from tests.support.receiver import Receiver, receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.kit.settings import Settings
    from autodeploy.service.store.database import Database
    from autodeploy.service.store.tables import DeliveryRow

pytestmark = pytest.mark.integration

SECRET = "0123456789abcdef0123456789abcdef"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as opened:
        yield opened


def hooked_settings(database_url: str, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "webhook_targets": "127.0.0.1:*,localhost:*,unlisted.example.com",
        "webhook_secret": SECRET,
        "webhook_timeout_s": 0.5,
        "webhook_retry_s": 0.05,
        "webhook_attempts": 3,
    }
    return quick_settings(database_url, **values | changes)


@contextmanager
def sender(database: Database, settings: Settings) -> Iterator[WebhookSender]:
    """What a server or worker runs, alone."""
    found = WebhookSender(database, settings, Targets.parse(settings.webhook_targets), SECRET)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def row_of(database: Database, search_id: str) -> DeliveryRow:
    with database.read() as session:
        (row,) = Deliveries(session).of_search(search_id)
        return row


def reaches(database: Database, search_id: str, status: str) -> DeliveryRow:
    eventually(lambda: row_of(database, search_id).status == status)
    return row_of(database, search_id)


def is_signed(request: Any, team: str = "default") -> bool:
    """As a receiver would look: by the example of the documentation."""
    namespace: dict[str, Any] = {}
    exec(example(), namespace)
    signed = namespace["is_genuine"](request.body, request.headers["X-AutoDeploy-Signature"], team_secret(SECRET, team))
    assert isinstance(signed, bool)
    return signed


def example() -> str:
    page = (ROOT / "docs" / "how-to" / "rest_api.md").read_text(encoding="utf-8")
    (found,) = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "is_genuine" in code]
    return str(found)


def test_every_end_is_told_of_and_signed(database, database_url, hooks):
    settings = hooked_settings(database_url)
    url = f"{hooks.url}/ok"
    ends: dict[str, str] = {}
    with open_services(settings, with_runner=True, planner=QUICK) as services:
        for behaviour, status in (("dsv3", "optimal"), (FAILS, "failed"), (CRASHES, "failed"), (SLOW, "cancelled")):
            ends[services.searches.submit(named(behaviour), webhook=url).search.id] = status
        slow = list(ends)[-1]
        queued = services.searches.submit(named(SLOW, top_k=7), webhook=url).search.id
        ends[queued] = "cancelled"
        services.searches.cancel(queued)
        eventually(status_is(services, slow, "running"))
        services.searches.cancel(slow)
        answered = services.searches.submit(named("dsv3"), webhook=url).search
        assert answered.cached
        ends[answered.id] = "optimal"
        eventually(lambda: len(hooks.of("/ok")) >= len(ends))
        for search_id in ends:
            row = reaches(database, search_id, "delivered")
            assert (row.attempts, row.last_error, row.next_at) == (1, None, None)
    told = {}
    for request in hooks.of("/ok"):
        assert is_signed(request)
        body = json.loads(request.body)
        assert body["type"] == "search.finished"
        assert request.headers["X-AutoDeploy-Delivery"] == body["id"]
        assert body["search"]["finished_at"] is not None
        told[body["search"]["id"]] = body["search"]["status"]
    assert told == ends


def test_the_example_of_the_documentation_refuses_what_is_not_genuine(database, database_url, hooks):
    services_settings = hooked_settings(database_url)
    with open_services(services_settings, with_runner=True, planner=QUICK) as services:
        services.searches.submit(named("dsv3"), webhook=f"{hooks.url}/ok")
        eventually(lambda: hooks.of("/ok"))
    request = hooks.of("/ok")[0]
    namespace: dict[str, Any] = {}
    exec(example(), namespace)
    is_genuine, header = namespace["is_genuine"], request.headers["X-AutoDeploy-Signature"]
    secret = team_secret(SECRET, "default")
    assert is_genuine(request.body, header, secret)
    assert not is_genuine(request.body + b" ", header, secret)
    assert not is_genuine(request.body, header, team_secret(SECRET, "other"))
    moment = int(header.partition(",")[0].removeprefix("t="))
    assert not is_genuine(request.body, header.replace(str(moment), str(moment + 1)), secret)
    assert not is_genuine(request.body, header, secret, now_s=moment + 3600)
    assert not is_genuine(request.body, "", secret)


def queued_with_hook(services: Services, url: str, **changes: Any) -> str:
    return services.searches.submit(named("dsv3", **changes), webhook=url, reuse=False).search.id


def end(database: Database, search_id: str) -> None:
    with database.write() as session:
        assert Queue(session).request_cancel(search_id, now=utc_now()) == "queued"


def test_a_failure_is_tried_again_and_given_up_after_the_last_attempt(services, database, database_url, hooks):
    flaky, error = (queued_with_hook(services, f"{hooks.url}/{path}") for path in ("flaky", "error"))
    assert row_of(database, flaky).status == "waiting"
    for search_id in (flaky, error):
        end(database, search_id)
    with sender(database, hooked_settings(database_url)):
        assert reaches(database, flaky, "delivered").attempts == 2
        given_up = reaches(database, error, "failed")
    assert (given_up.attempts, given_up.last_error, given_up.next_at) == (3, "answered with 500", None)
    assert [json.loads(request.body)["attempt"] for request in hooks.of("/error")] == [1, 2, 3]
    assert len({request.headers["X-AutoDeploy-Delivery"] for request in hooks.of("/error")}) == 1
    first, second, third = (request.at_s for request in hooks.of("/error"))
    assert second - first >= 0.05
    assert third - second >= 0.15


@pytest.mark.parametrize(
    ("path", "reason"), [("redirect", "redirects are not followed"), ("gone", "answered with 410")]
)
def test_a_redirect_is_not_followed_and_gone_is_gone(services, database, database_url, hooks, path, reason):
    search_id = queued_with_hook(services, f"{hooks.url}/{path}")
    end(database, search_id)
    with sender(database, hooked_settings(database_url)):
        row = reaches(database, search_id, "failed")
    assert row.attempts == 1
    assert reason in row.last_error
    assert [request.path for request in hooks.requests] == [f"/{path}"]


def test_a_private_address_behind_a_name_is_refused_when_it_is_called(services, database, database_url, hooks):
    """The list has the name, not the address: as when the name is given another one after it was listed."""
    search_id = queued_with_hook(services, f"http://localhost:{hooks.port}/ok")
    end(database, search_id)
    with sender(database, hooked_settings(database_url, webhook_targets="localhost:*")):
        row = reaches(database, search_id, "failed")
    assert row.attempts == 1
    assert row.last_error == Message("jobs.receiver_is_not_allowed")
    assert hooks.requests == []


def test_a_target_that_is_taken_off_the_list_is_not_called(services, database, database_url, hooks):
    search_id = queued_with_hook(services, f"{hooks.url}/ok")
    end(database, search_id)
    with sender(database, hooked_settings(database_url, webhook_targets="ci.example.com")):
        row = reaches(database, search_id, "failed")
    assert row.last_error.startswith("refused: webhooks to 127.0.0.1")
    assert hooks.requests == []


def test_slow_receivers_hold_up_nobody(services, database, database_url, hooks):
    """Thirty to receivers that answer late or drop by drop, then one to another: it is there at once."""
    with receiver() as other:
        paths = ("slow", "drip")
        slow = [queued_with_hook(services, f"{hooks.url}/{paths[n % 2]}?{n}", top_k=n + 1) for n in range(30)]
        quick = queued_with_hook(services, f"{other.url}/ok")
        for search_id in slow:
            end(database, search_id)
        with sender(database, hooked_settings(database_url, webhook_timeout_s=0.3)) as running:
            eventually(lambda: len(hooks.requests) == PER_ORIGIN)
            began_s = time.monotonic()
            end(database, quick)
            eventually(lambda: other.of("/ok"))
            assert other.of("/ok")[0].at_s - began_s < 4.0
            reaches(database, quick, "delivered")
            # Each attempt ends after a third of a second, however the receiver trickles.
            eventually(lambda: len(hooks.requests) >= 2 * PER_ORIGIN, within_s=20.0)
            began_s = time.monotonic()
            running.stop()
            assert time.monotonic() - began_s < 4.0
    failed = [row_of(database, search_id).last_error for search_id in slow]
    assert any(error == Message("jobs.receiver_did_not_answer", kind="TimeoutError") for error in failed)


def test_two_senders_never_make_the_same_attempt(services, database, database_url, hooks):
    with_hooks = [queued_with_hook(services, f"{hooks.url}/ok?{number}", top_k=number + 1) for number in range(20)]
    for search_id in with_hooks:
        end(database, search_id)
    settings = hooked_settings(database_url)
    with sender(database, settings), sender(database, settings), sender(database, settings):
        for search_id in with_hooks:
            assert reaches(database, search_id, "delivered").attempts == 1
    assert len(hooks.requests) == len({request.path for request in hooks.requests}) == 20


def test_one_claim_of_an_attempt_holds_until_its_time_is_over(services, database):
    search_id = queued_with_hook(services, "http://127.0.0.1:9/x")
    end(database, search_id)
    now = utc_now()
    with database.write() as session:
        deliveries = Deliveries(session)
        due = deliveries.next_due(now=now)
        assert due is not None
        assert (due.search_id, due.attempts) == (search_id, 0)
        assert deliveries.claim(due, now=now, until=now + timedelta(seconds=30))
        assert not deliveries.claim(due, now=now, until=now + timedelta(seconds=30))
        assert deliveries.next_due(now=now + timedelta(seconds=29)) is None
        # Its sender died: due again, and what the dead one still says does not count.
        again = deliveries.next_due(now=now + timedelta(seconds=31))
        assert again is not None
        assert again.attempts == 1
        assert deliveries.claim(again, now=now + timedelta(seconds=31), until=now + timedelta(seconds=60))
        assert not deliveries.delivered(due)
        assert deliveries.delivered(again)
        assert deliveries.next_due(now=now + timedelta(days=1)) is None


def test_what_is_waiting_goes_with_its_search(services, database):
    search_id = queued_with_hook(services, "http://127.0.0.1:9/x")
    services.searches.delete(search_id)
    with database.read() as session:
        assert Deliveries(session).of_search(search_id) == []


def test_targets_take_a_secret(database_url):
    settings = quick_settings(database_url, webhook_targets="ci.example.com")
    with pytest.raises(SpecError) as caught, open_services(settings, planner=QUICK):
        pass
    assert [error.path for error in caught.value.errors] == ["AUTODEPLOY_WEBHOOK_SECRET"]


@pytest.mark.anyio
async def test_the_route(database_url, hooks):
    async with running_app(hooked_settings(database_url)) as client:
        document = factories.spec_document()
        for refused in ("https://evil.example.com/", "http://169.254.169.254/", "http://10.0.0.1/", "gopher://x/"):
            for asked in ({"params": {"webhook": refused}}, {"headers": {"X-AutoDeploy-Webhook": refused}}):
                answer = await client.post("/v1/searches", json=document, **asked)
                assert answer.status_code == 422, answer.text
                assert answer.json()["errors"][0]["pointer"] == "webhook"
        assert (await client.get("/v1/searches")).json()["items"] == []
        params = {"webhook": f"{hooks.url}/ok"}
        headers = {"Prefer": "wait=20", "Idempotency-Key": "k"}
        answer = await client.post("/v1/searches", json=document, params=params, headers=headers)
        search_id = answer.json()["search"]["id"]
        again = await client.post("/v1/searches", json=document, params=params, headers=headers)
        assert again.json()["search"]["id"] == search_id
        assert (await client.post("/v1/searches", json=document, headers=headers)).status_code == 422
        eventually(lambda: hooks.of("/ok"))

        address = f"/v1/searches/{search_id}/webhooks"
        (item,) = (await client.get(address)).json()["items"]
        assert item["url"] == params["webhook"]
        secret = (await client.get("/v1/webhook-secret")).json()
        assert secret == {"team": "default", "secret": team_secret(SECRET, "default")}
        assert (await client.get("/v1/searches/srch_0/webhooks")).status_code == 404
    assert len(hooks.of("/ok")) == 1
    assert SECRET not in repr(hooked_settings(database_url))


@pytest.mark.anyio
async def test_without_targets_there_are_none(database_url):
    async with running_app(quick_settings(database_url)) as client:
        answer = await client.post("/v1/searches", json=factories.spec_document(), params={"webhook": "https://a.org/"})
        assert answer.status_code == 422
        assert "AUTODEPLOY_WEBHOOK_TARGETS" in answer.json()["errors"][0]["hint"]
        assert (await client.get("/v1/webhook-secret")).status_code == 404


@pytest.mark.anyio
async def test_teams_have_their_own_secrets_and_see_their_own_webhooks(database, database_url, hooks):
    access = AccessService(database)
    keys = {team: access.create(team, "write", team=team)[0] for team in ("red", "blue")}
    async with running_app(hooked_settings(database_url, auth="keys")) as client:
        bearer = {team: {"Authorization": f"Bearer {key}"} for team, key in keys.items()}
        answer = await client.post(
            "/v1/searches", json=factories.spec_document(), params={"webhook": f"{hooks.url}/ok"}, headers=bearer["red"]
        )
        address = f"/v1/searches/{answer.json()['search']['id']}/webhooks"
        assert (await client.get(address, headers=bearer["red"])).status_code == 200
        assert (await client.get(address, headers=bearer["blue"])).status_code == 404
        secrets = [(await client.get("/v1/webhook-secret", headers=bearer[team])).json() for team in keys]
        assert [secret["secret"] for secret in secrets] == [team_secret(SECRET, team) for team in keys]
        reader, _ = access.create("reader", "read", team="red")
        headers = {"Authorization": f"Bearer {reader}"}
        assert (await client.get("/v1/webhook-secret", headers=headers)).status_code == 403
        eventually(lambda: hooks.of("/ok"))
    assert is_signed(hooks.of("/ok")[0], "red")
    assert not is_signed(hooks.of("/ok")[0], "blue")
