"""Pages that wait for a calculation hold up no page that needs none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from api.http.dependencies import THREADS
from tests.support import plain_http

if TYPE_CHECKING:
    from tests.ui.conftest import Site


def test_quick_pages_go_past_those_that_wait(site: Site) -> None:
    pool = site.services.call_pool
    assert pool is not None
    # Equal questions of a plan wait for one answer, pictures each for their own.
    asked = [f"/searches/{site.stored['good']}/strategies"] * (2 * THREADS)
    with plain_http.Client(base_url=site.url, timeout=60.0) as reader, ThreadPoolExecutor(len(asked)) as readers:
        with pool._turns.turn("", 60.0):  # the only process is busy
            waiting = [readers.submit(reader.get, path) for path in asked]
            while pool.waiting < len(asked) and not any(each.done() for each in waiting):
                assert reader.get("/", timeout=10.0).status_code == 200
            assert pool.waiting == len(asked)
            assert reader.get(f"/searches/{site.stored['good']}", timeout=10.0).status_code == 200
        assert {each.result().status_code for each in waiting} == {200}
