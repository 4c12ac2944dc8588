"""A path before every address: taken off requests, put before answers, and never one of the service's own."""

from __future__ import annotations

import pytest

from api.app import create_app
from api.http.prefix import PrefixedRequests, refuse_own_paths
from autodeploy.kit.errors import SpecError
from autodeploy.kit.settings import Settings, load_settings


async def _nothing(*_: object) -> None:
    return None


pytestmark = pytest.mark.unit
LAYER = PrefixedRequests(_nothing, prefix="/tools/planner")


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ("/tools/planner", "/"),
        ("/tools/planner/", "/"),
        ("/tools/planner/v1/searches", "/v1/searches"),
        ("/v1/searches", "/v1/searches"),
        ("/tools/planners/v1", "/tools/planners/v1"),
        ("/tools/planner//evil.example", "//evil.example"),
    ],
)
def test_the_prefix_is_taken_off_once(asked, path):
    assert LAYER._without(asked) == path


@pytest.mark.parametrize(
    ("location", "sent"),
    [
        ("/searches/a?lang=zh", "/tools/planner/searches/a?lang=zh"),
        ("https://here:8443/v1/runs", "https://here:8443/tools/planner/v1/runs"),
        ("https://elsewhere/v1/runs", "https://elsewhere/v1/runs"),
        ("//elsewhere/v1", "//elsewhere/v1"),
        ("#place", "#place"),
    ],
)
def test_only_own_locations_get_it(location, sent):
    assert LAYER._with(location, "here:8443") == sent


@pytest.mark.parametrize("first", ["v1", "static", "searches", "login", "livez", "metrics", "openapi.json", "plans"])
def test_an_address_of_the_service_is_no_prefix(first, tmp_path):
    app = create_app(Settings(database_url=f"sqlite:///{tmp_path / 'a.db'}"))
    with pytest.raises(SpecError, match=f"/{first} is an address of the service itself"):
        refuse_own_paths(app, f"/{first}/below")
    refuse_own_paths(app, "/autodeploy")


@pytest.mark.parametrize("value", ["autodeploy", "/a b", "/a/../b", "/.", "//a", "/a?b", "/a;b", "/ü"])
def test_no_prefix(value):
    with pytest.raises(SpecError) as caught:
        load_settings(path_prefix=value)
    assert caught.value.errors[0].path == "AUTODEPLOY_PATH_PREFIX"


@pytest.mark.parametrize(("value", "kept"), [("", ""), ("/", ""), ("/a/", "/a"), ("/a/b.c", "/a/b.c")])
def test_a_prefix(value, kept):
    assert load_settings(path_prefix=value).path_prefix == kept


@pytest.mark.parametrize("value", ["nginx", "10.0.0.7, proxy", "10.0.0.1/24", "10.0.0.7,*"])
def test_no_addresses_of_proxies(value):
    with pytest.raises(SpecError) as caught:
        load_settings(trusted_proxies=value)
    assert caught.value.errors[0].path == "AUTODEPLOY_TRUSTED_PROXIES"


@pytest.mark.parametrize("value", ["", "*", "10.0.0.7", "10.0.0.0/24, ::1"])
def test_addresses_of_proxies(value):
    assert load_settings(trusted_proxies=value).trusted_proxies == value
