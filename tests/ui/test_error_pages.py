"""What a browser gets where something is missing or does not work: a page in its language, and programs a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autodeploy.kit.errors import OverloadError
from autodeploy.messages import Message
from tests.support import plain_http

if TYPE_CHECKING:
    from tests.ui.conftest import Site

PAGE = {"Accept": "text/html,application/xhtml+xml", "Accept-Language": "en"}


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/searches/srch_none", "belong to another team"),
        ("/plans/p_none", "belong to another team"),
        ("/profiles/cloudmatrix", "did you mean cloudmatrix-384?"),
        ("/software/mindformer", "did you mean mindformers?"),
        ("/nothing/here", "Not found"),
    ],
)
def test_what_is_missing_is_a_page_that_leads_on(site: Site, path: str, says: str) -> None:
    answer = plain_http.get(site.url + path, headers=PAGE)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert says in answer.text
    assert 'href="/"' in answer.text


def test_programs_get_a_problem(site: Site) -> None:
    for path, headers in (("/nothing/here", {"Accept": "*/*"}), ("/v1/plans/p_none", PAGE)):
        answer = plain_http.get(site.url + path, headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


def test_a_busy_server_says_so_on_a_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id = site.services.searches.plans(site.stored["good"])[0].plan_id

    def refuse(*_args: object, **_kwargs: object) -> None:
        said = Message("jobs.too_many_predictions")
        raise OverloadError(said, hint=Message("common.try_again"))

    monkeypatch.setattr(site.services.call_pool, "call_of", refuse)
    answer = plain_http.get(f"{site.url}/plans/{plan_id}/operators", headers=PAGE | {"Accept-Language": "zh"})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "服务器暂时繁忙" in answer.text
    assert "too many predictions" not in answer.text
    problem = plain_http.get(f"{site.url}/plans/{plan_id}/knobs", headers={"Accept": "*/*"})
    assert problem.json()["detail"] == "too many predictions are asked for at once"


@pytest.mark.parametrize(
    ("asked", "leads_to"), [("/hardware", "/profiles"), ("/hardware?lang=zh", "/profiles?lang=zh")]
)
def test_hardware_is_found_under_the_name_that_pages_give_it(site: Site, asked: str, leads_to: str) -> None:
    answer = plain_http.get(site.url + asked)
    assert (answer.status_code, answer.headers["location"]) == (308, leads_to)
