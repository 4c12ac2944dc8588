"""What is refused and accepted is what the OpenAPI document says: types as JSON has them, moments, methods, texts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from autodeploy.kit.errors import SpecError
from autodeploy.specs.reading import read_spec_document
from tests import factories
from tests.integration.conftest import quick_settings, running_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]


@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    path: Path = tmp_path_factory.mktemp("strict") / "autodeploy.db"
    async with running_app(quick_settings(f"sqlite:///{path}")) as opened:
        yield opened


async def test_allow_names_every_method_of_an_address(client):
    document = (await client.get("/openapi.json")).json()
    several = 0
    for path, methods in document["paths"].items():
        address = re.sub(r"\{[^}]*\}", "srch_0", path)
        for unknown in ("PUT", "TRACE", "OPTIONS"):
            answer = await client.request(unknown, address)
            assert answer.status_code == 405, (unknown, path)
            assert set(answer.headers["allow"].split(", ")) - {"HEAD"} == {name.upper() for name in methods}, path
        several += len(methods) > 1
    assert several >= 4


@pytest.mark.parametrize(
    "text",
    [
        *("0.5", "1700000000", "2026-11-20", "2026-11-20T12:00:00", "2026-11-20 12:00:00Z", "2026-02-30T00:00:00Z"),
        *("0000-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.9999Z"),
    ],
)
async def test_only_rfc_3339_is_a_moment(client, text):
    for name in ("created_after", "created_before"):
        answer = await client.get("/v1/searches", params={name: text})
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["pointer"] == name


@pytest.mark.parametrize("text", ["2026-11-20T12:00:00Z", "2026-11-20t12:00:00.5+05:30", "0001-01-01T00:00:00Z"])
async def test_a_moment_with_its_zone_is_one(client, text):
    assert (await client.get("/v1/searches", params={"created_after": text})).status_code == 200


@pytest.mark.parametrize(
    ("section", "key", "value", "pointer"),
    [
        ("strategy", "reuse_fp32_param", 0, "/strategy/reuse_fp32_param"),
        ("strategy", "reuse_fp32_param", "false", "/strategy/reuse_fp32_param"),
        ("strategy", "tp", "2", "/strategy/tp"),
        ("strategy", "tp", True, "/strategy/tp"),
        ("search", "deterministic_training", 1, "/search/deterministic_training"),
        ("cluster", "num_npus", "384", "/cluster/num_npus"),
        ("training", "tokens", "1e12", "/training/tokens"),
        ("training", "tokens", True, "/training/tokens"),
        ("training", "global_batch_size", "15360", "/training/global_batch_size"),
    ],
)
async def test_types_are_those_of_json(client, section, key, value, pointer):
    document = factories.spec_document()
    document[section] = {**(document.get(section) or {}), key: value}
    answer = await client.post("/v1/searches", json=document)
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["pointer"] == pointer
    if isinstance(value, str) and section != "training":
        assert error["hint"] == "without quotes"
    with pytest.raises(SpecError):
        read_spec_document(document)


async def test_a_whole_number_with_a_point_is_one(client):
    document = factories.spec_document()
    document["cluster"]["num_npus"] = 384.0
    assert (await client.post("/v1/searches", json=document)).status_code in {200, 202}


@pytest.mark.parametrize("tags", [[""], ["x" * 65], ["a"] * 21])
async def test_the_schema_says_what_a_tag_is(client, tags):
    document = (await client.get("/openapi.json")).json()
    (kind, _) = document["components"]["schemas"]["Annotations"]["properties"]["tags"]["anyOf"]
    assert (kind["maxItems"], kind["items"]["minLength"], kind["items"]["maxLength"]) == (20, 1, 64)
    answer = await client.post("/v1/searches", json=factories.spec_document())
    address = f"/v1/searches/{answer.json()['search']['id']}"
    assert (await client.patch(address, json={"tags": tags})).status_code == 422


async def test_no_parameter_may_be_null(client):
    document = (await client.get("/openapi.json")).json()
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                assert "null" not in str(parameter["schema"]), (operation["operationId"], parameter["name"])


async def test_every_operation_names_the_rules_that_its_schema_cannot_say(client):
    document = (await client.get("/openapi.json")).json()
    named = {
        group
        for methods in document["paths"].values()
        for operation in methods.values()
        for group in operation.get("x-refusals", ())
    }
    assert named == set(document["x-refusals"])
    of_a_search = document["paths"]["/v1/searches"]["post"]["x-refusals"]
    assert of_a_search == ["body", "spec", "strategy", "file", "service", "inside"]
    assert any("the phases have" in text for text in document["x-refusals"]["spec"].values())
