"""Hostile documents at the service: refused in words, read in a process for that, never at the server's own cost."""

from __future__ import annotations

import os
import resource
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from autodeploy.kit.errors import OverloadError, SpecError
from autodeploy.service.session import open_services
from tests import factories
from tests.integration.conftest import QUICK, quick_settings, running_app
from tests.support.document_grammars import FORMATS
from tests.support.hostile_documents import DOCUMENTS

if TYPE_CHECKING:
    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

SUFFIXES = {"toml": ".toml", "yaml": ".yaml", "json": ".json", "shell": ".sh", "hydra": ".sh", "tables": ".csv"}
ANSWERS = {200, 201, 303, 400, 413, 422}
OWN_S, OWN_MB = 1.0, 300.0
EACH = 6


class Cost:
    """What this process, which is the server, has spent in the block."""

    def __enter__(self) -> Cost:
        self._began_s, self._began_mb = time.process_time(), self._peak_mb()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.mb = time.process_time() - self._began_s, self._peak_mb() - self._began_mb

    def _peak_mb(self) -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def _post(client: httpx.AsyncClient, address: str, **sent: Any) -> httpx.Response:
    with Cost() as cost:
        answer = await client.post(address, **sent)
    assert answer.status_code in ANSWERS, (answer.status_code, answer.text[:300])
    assert cost.seconds < OWN_S
    assert cost.mb < OWN_MB
    assert len(answer.content) < 1_000_000
    return answer


@pytest.mark.parametrize("name", FORMATS)
async def test_hostile_launches_are_no_bug_and_cost_the_server_nothing(sqlite_url, name):
    async with running_app(quick_settings(sqlite_url)) as client:
        await client.post("/v1/checks", json={"file": "a: 1", "cluster": "ascend-800t-a2"})  # what is imported once
        for text in list(DOCUMENTS[name].values())[:EACH]:
            asked = {"file": text, "filename": f"x{SUFFIXES[name]}", "cluster": "ascend-800t-a2", "num_npus": 64}
            await _post(client, "/v1/checks", json=asked)
            await _post(client, "/v1/improve", json=asked)


@pytest.mark.parametrize("name", ["toml", "shell"])
async def test_hostile_files_in_the_page_and_before_a_change_are_no_bug_either(sqlite_url, name):
    async with running_app(quick_settings(sqlite_url)) as client:
        await client.post("/new/read", data={"spec": "a: 1"})
        for text in list(DOCUMENTS[name].values())[:EACH]:
            filename = f"x{SUFFIXES[name]}"
            beside = {"filename": filename, "cluster": "ascend-800t-a2", "num_npus": "64"}
            read = await _post(client, "/new/read", data={"spec": text, **beside})
            assert read.json()["errors"]
            await _post(client, "/new", data={"spec": text, "form": "paste", **beside})
            asked = {
                "spec": factories.spec_document(strategy={"tp": 2}),
                "baseline": {"file": text, "filename": filename},
            }
            await _post(client, "/v1/checks", json=asked)


@pytest.mark.parametrize("media", ["application/yaml", "application/json"])
async def test_hostile_bodies_are_refused(sqlite_url, media):
    async with running_app(quick_settings(sqlite_url)) as client:
        await client.post("/v1/searches", content="a: 1", headers={"Content-Type": "application/yaml"})
        for text in DOCUMENTS[media.rpartition("/")[2]].values():
            answer = await _post(client, "/v1/searches", content=text.encode(), headers={"Content-Type": media})
            assert answer.status_code != 200


async def test_hostile_measurements_are_refused_or_read_elsewhere(sqlite_url):
    async with running_app(quick_settings(sqlite_url)) as client:
        planned = await client.post("/v1/searches", json=factories.spec_document(), headers={"Prefer": "wait=60"})
        runs = f"/v1/plans/{planned.json()['plans'][0]['plan_id']}/runs"
        for text in DOCUMENTS["tables"].values():
            await _post(client, runs, content=text.encode(), headers={"Content-Type": "text/plain"})


async def test_hostile_axes_of_a_question_are_refused(sqlite_url):
    dots = [".".join("a" * parts) for parts in (100, 1_000, 100_000)]
    axes = [{name: 1} for name in dots] + [{name: 1, name[:-2]: 2} for name in dots]
    async with running_app(quick_settings(sqlite_url)) as client:
        for strategy in axes:
            asked = {"spec": factories.spec_document(), "strategy": strategy}
            assert (await _post(client, "/v1/why-not", json=asked)).status_code in {400, 422}


def test_a_prediction_does_not_wait_for_a_call_that_searches(sqlite_url):
    settings = quick_settings(sqlite_url, call_limit_s=20.0, call_processes=1)
    with open_services(settings, with_runner=True, planner=QUICK) as services:
        assert services.searchers is not None
        assert services.call_pool is not None
        own = services._search(os.getpid)
        assert own != services.call_pool.call(os.getpid)
        searching = threading.Thread(target=services._search, args=(time.sleep, 3.0))
        searching.start()
        begun_s = time.monotonic()
        assert services.call_pool.call(os.getpid) != own
        assert time.monotonic() - begun_s < 3.0
        assert searching.is_alive()
        searching.join()


def test_documents_are_read_in_a_limited_process_that_predictions_do_not_hold_up(sqlite_url):
    settings = quick_settings(sqlite_url, call_limit_s=20.0, call_processes=1)
    with open_services(settings, with_runner=True, planner=QUICK) as services:
        assert services.readers is not None
        own, others = os.getpid(), services.read(os.getpid)
        assert own != others != services.call_pool.call(os.getpid)
        soft, _ = services.read(resource.getrlimit, resource.RLIMIT_AS)
        assert soft == settings.search_memory_bytes
        with pytest.raises(SpecError):
            services.read(_refuse)
        with pytest.raises(OverloadError):
            services.read(_take, settings.search_memory_bytes)
        assert services.read(os.getpid) != others


def _refuse() -> None:
    raise SpecError("no")


def _take(size: int) -> int:
    return len(bytearray(size))
