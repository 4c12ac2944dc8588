"""API keys over HTTP and on their page: who sees which, and who ends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.test_api_teams import OWN_PAGE

if TYPE_CHECKING:
    from tests.integration.conftest import Site

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


async def test_a_key_sees_itself_and_an_admin_sees_all(site: Site) -> None:
    (own,) = (await site.get("vision-reader", "/v1/keys"))["items"]
    assert (own["name"], own["team"], own["scope"], own["own"]) == ("vision-reader", "vision", "read", True)
    assert own["last_used_at"] is not None
    assert (own["expires_at"], own["revoked_at"], own["max_searches"]) == (None, None, None)
    every = (await site.get("root", "/v1/keys"))["items"]
    assert {each["name"] for each in every} == site.keys.keys()
    assert [each["name"] for each in every if each["own"]] == ["root"]
    shown = (await site.client.get("/v1/keys", headers=site.by("root"))).text
    assert not any(key in shown for key in site.keys.values())


async def test_an_admin_revokes_and_expires_and_the_log_says_so(site: Site) -> None:
    revoked, expired = (site.views[name].id for name in ("vision-writer", "speech-writer"))
    root = site.by("root")
    assert (await site.client.delete(f"/v1/keys/{revoked}", headers=root)).status_code == 204
    later = await site.client.patch(f"/v1/keys/{expired}", json={"expires_in_days": 2}, headers=root)
    assert later.status_code == 204
    keys = {each["id"]: each for each in (await site.get("root", "/v1/keys"))["items"]}
    assert keys[revoked]["revoked_at"] is not None
    assert keys[expired]["expires_at"] > keys[expired]["created_at"]
    assert (await site.client.get("/v1/keys", headers=site.by("vision-writer"))).status_code == 401
    assert (await site.client.get("/v1/keys", headers=site.by("speech-writer"))).status_code == 200
    await site.client.patch(f"/v1/keys/{expired}", json={"expires_in_days": 0}, headers=root)
    assert (await site.client.get("/v1/keys", headers=site.by("speech-writer"))).status_code == 401
    await site.client.patch(f"/v1/keys/{expired}", json={"expires_in_days": None}, headers=root)
    assert (await site.client.get("/v1/keys", headers=site.by("speech-writer"))).status_code == 200
    noted = (await site.get("root", "/v1/audit"))["items"]
    assert {(each["action"], each["object_id"]) for each in noted} == {
        ("key.revoke", revoked),
        ("key.expire", expired),
    }


async def test_others_may_end_no_key(site: Site) -> None:
    own, other = site.views["vision-fitter"].id, site.views["vision-reader"].id
    for key_id, status in ((own, 403), (other, 404), ("key_0nobodys", 404)):
        headers = site.by("vision-fitter") | OWN_PAGE
        asked = await site.client.delete(f"/v1/keys/{key_id}", headers=headers)
        assert asked.status_code == status
        for form, values in (("revoke", {}), ("expire", {"days": "0"})):
            asked = await site.client.post(f"/keys/{key_id}/{form}", data=values, headers=headers)
            assert asked.status_code == status
    for days in (-1, False, True, "30", [0]):  # no truth value ends a key
        unread = await site.client.patch(f"/v1/keys/{other}", json={"expires_in_days": days}, headers=site.by("root"))
        assert unread.status_code == 422
    assert len((await site.get("root", "/v1/keys"))["items"]) == len(site.keys)
    assert not any(each["revoked_at"] or each["expires_at"] for each in (await site.get("root", "/v1/keys"))["items"])


async def test_the_page_shows_ones_own_key_and_an_admin_ends_others_there(site: Site) -> None:
    page = await site.client.get("/keys", headers=site.by("vision-reader"))
    assert "vision-reader" in page.text
    assert "vision-writer" not in page.text
    target = site.views["vision-writer"].id
    root = site.by("root") | OWN_PAGE
    page = await site.client.get("/keys", headers=root)
    assert f"/keys/{target}/revoke" in page.text
    assert f"/keys/{site.views['root'].id}/revoke" not in page.text
    foreign = await site.client.post(f"/keys/{target}/revoke", headers=root | {"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    for days in ("-1", "99999", "soon"):
        assert (await site.client.post(f"/keys/{target}/expire", data={"days": days}, headers=root)).status_code == 303
    assert (await site.client.get("/v1/keys", headers=site.by("vision-writer"))).json()["items"][0][
        "expires_at"
    ] is None
    assert (await site.client.post(f"/keys/{target}/expire", data={"days": "9"}, headers=root)).status_code == 303
    assert (await site.client.get("/v1/keys", headers=site.by("vision-writer"))).json()["items"][0]["expires_at"]
    assert (await site.client.post(f"/keys/{target}/revoke", headers=root)).status_code == 303
    assert (await site.client.get("/v1/keys", headers=site.by("vision-writer"))).status_code == 401
