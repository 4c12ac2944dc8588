"""Every refusal is a problem document that says what to do."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from api.http.middleware import ObservedRequests
from tests import factories
from tests.integration.conftest import quick_settings, running_app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

pytestmark = [pytest.mark.integration, pytest.mark.anyio]

JSON = {"Content-Type": "application/json"}


# One app for the module: none of these requests changes anything.
@pytest.fixture(scope="module")
async def client(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    path = tmp_path_factory.mktemp("problems") / "autodeploy.db"
    async with running_app(quick_settings(f"sqlite:///{path}", body_limit_bytes=20_000)) as client:
        yield client


def assert_problem(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["type"] == f"urn:autodeploy:problem:{slug}"
    assert body["request_id"] == response.headers["x-request-id"]
    return body


async def test_all_mistakes_at_once(client):
    document = {
        "model": "deepseek-v33",
        "cluster": {"profile": "cloudmatrix-385", "num_npus": 0},
        "training": {"seq_len": 4096, "global_batch_size": 15360},
        "search": {"features": {"adaptive_pip": "on"}},
    }
    body = assert_problem(await client.post("/v1/searches", json=document), 422, "invalid-spec")
    errors = {error["pointer"]: error for error in body["errors"]}
    assert set(errors) >= {
        "/model",
        "/cluster/profile",
        "/cluster/num_npus",
        "/training/seq_len",
        "/training/seq_length",
    }
    assert "deepseek-v3" in errors["/model"]["hint"]
    assert "cloudmatrix-384" in errors["/cluster/profile"]["hint"]
    assert "seq_length" in errors["/training/seq_len"]["hint"]


@pytest.mark.parametrize(
    ("path", "value", "pointer"),
    [
        (("model",), {"hf_config": "/etc/passwd"}, "/model/hf_config"),
        (("cluster", "profile"), "/etc/passwd", "/cluster/profile"),
        (("cluster", "profile"), "../secret.yaml", "/cluster/profile"),
        (("training", "expert_load_file"), "/etc/passwd", "/training/expert_load_file"),
        (("cluster", "overrides"), {"no.such.number": 1.0}, "/cluster/overrides/no.such.number"),
    ],
)
async def test_no_file_of_the_server_is_read(client, path, value, pointer):
    document = factories.spec_document()
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    body = assert_problem(await client.post("/v1/searches", json=document), 422, "invalid-spec")
    assert [error["pointer"] for error in body["errors"]] == [pointer]
    assert "root:" not in str(body)


async def test_an_axis_without_such_a_value_is_refused_at_once(client: httpx.AsyncClient) -> None:
    document = factories.spec_document() | {"search": {"fix": {"etp": "dualpipev"}}}
    body = assert_problem(await client.post("/v1/searches", json=document), 422, "invalid-spec")
    assert [(e["pointer"], e["hint"]) for e in body["errors"]] == [("/search/fix", "at least 1")]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"a": NaN}',
        b'{"model": "\\ud800"}',
        b'{"model": "a\\u0000b"}',
        b'{"a": 1e999}',
        b"\xff\xfe",
        b"[" * 9000,
        b'{"a": 1, "a": 2}',
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
    ids=["empty", "cut", "nan", "surrogate", "nul", "infinite", "not_utf8", "deep", "twice", "huge"],
)
async def test_a_malformed_body(client, content):
    assert_problem(await client.post("/v1/searches", content=content, headers=JSON), 400, "bad-request")


@pytest.mark.parametrize("document", [[], "text", 7, None, {}, {"model": []}, {"plans": [], "search": {}}])
async def test_json_that_is_no_spec(client, document):
    response = await client.post("/v1/searches", content=json.dumps(document), headers=JSON)
    assert_problem(response, 422, "invalid-spec")


async def test_a_yaml_alias_bomb_is_refused(client):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    headers = {"Content-Type": "application/yaml"}
    response = await client.post("/v1/searches", content="\n".join(lines), headers=headers)
    assert_problem(response, 400, "bad-request")


async def test_a_large_body(client):
    assert_problem(await client.post("/v1/searches", content=b" " * 30_000, headers=JSON), 413, "content-too-large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(30):
            yield b" " * 1000

    assert_problem(await client.post("/v1/searches", content=pieces(), headers=JSON), 413, "content-too-large")
    annotated = await client.patch("/v1/searches/srch_0", content=pieces(), headers=JSON)
    assert_problem(annotated, 413, "content-too-large")


async def test_other_media_types(client):
    for headers in ({"Content-Type": "text/html"}, {}):
        response = await client.post("/v1/searches", content=b"{}", headers=headers)
        assert_problem(response, 415, "unsupported-media-type")


async def test_unknown_addresses_and_methods(client):
    assert_problem(await client.get("/v1/nothing"), 404, "not-found")
    assert_problem(await client.get("/v1/searches/srch_unknown0"), 404, "not-found")
    assert_problem(await client.get("/v1/searches/srch_unknown0/events"), 404, "not-found")
    assert_problem(await client.get("/v1/plans/p_unknown0"), 404, "not-found")
    assert_problem(await client.get("/v1/models/gpt-9"), 404, "not-found")
    assert_problem(await client.get("/v1/hardware-profiles/abacus"), 404, "not-found")
    assert_problem(await client.get("/v1/schemas/poem"), 404, "not-found")
    refused = await client.put("/v1/searches", json={})
    assert_problem(refused, 405, "method-not-allowed")
    assert set(refused.headers["allow"].split(", ")) & {"GET", "POST"}


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("status=done", "status"),
        ("after=7", "after"),
        ("created_after=yesterday", "created_after"),
        ("created_after=2026-11-20T12:00:00", "created_after"),
        ("model=a%00b", "model"),
    ],
)
async def test_bad_parameters(client, query, name):
    response = await client.get(f"/v1/searches?{query}")
    body = response.json()
    assert response.status_code == 422
    assert [error["pointer"] for error in body["errors"]] == [name]


async def test_another_sites_page_changes_nothing(client):
    headers = {"Sec-Fetch-Site": "cross-site"}
    assert_problem(await client.post("/v1/searches", json={}, headers=headers), 403, "forbidden")
    assert (await client.get("/v1/searches", headers=headers)).status_code == 200


async def test_a_given_request_id_is_kept_when_it_is_harmless(client):
    assert (await client.get("/livez", headers={"X-Request-ID": "ci-42"})).headers["x-request-id"] == "ci-42"
    assert (await client.get("/livez", headers={"X-Request-ID": "a b"})).headers["x-request-id"] != "a b"


async def test_a_problem_is_told_in_the_language_that_is_asked_for(client: httpx.AsyncClient) -> None:
    """As browsers ask for it, so that a page's scripts show what its reader understands; English otherwise."""
    spec = factories.spec_document() | {"trainings": 1}
    spec["cluster"] = {"profile": "ascend-800t-a2", "num_npus": 0}
    for asked, said, hint in (
        ("zh-Hans", "0 太小", "至少 1"),
        ("zh-CN,en;q=0.8", "未知字段 'trainings'", "是否想写 training"),
        ("en", "0 is too small", "at least 1"),
    ):
        response = await client.post("/v1/searches", json=spec, headers={"Accept-Language": asked})
        errors = assert_problem(response, 422, "invalid-spec")["errors"]
        assert said in {error["detail"] for error in errors}
        assert any(error["hint"].startswith(hint) for error in errors)
        assert response.headers["content-language"] == asked[:2]
    gone = await client.get("/v1/searches/srch_0000000000000000", headers={"Accept-Language": "zh"})
    assert assert_problem(gone, 404, "not-found")["detail"].startswith("搜索不存在")
    read = await client.post(
        "/new/read", data={"spec": "a: [1"}, headers={"Accept-Language": "zh", "Origin": "http://test"}
    )
    assert read.json()["errors"][0]["message"] == "第 1 行第 4 列：缺少与之配对的 ]"


async def test_a_pasted_configuration_of_an_unknown_architecture_is_doubted(client: httpx.AsyncClient) -> None:
    config = {"architectures": ["NewForCausalLM"], "hidden_size": 1024, "num_hidden_layers": 4, "vocab_size": 32_000}
    config |= {"num_attention_heads": 8, "intermediate_size": 4096, "some_new_key": 3}
    beside = {"cluster": "cloudmatrix-384", "num_npus": "8", "seq_length": "4096", "global_batch_size": "64"}
    headers = {"Accept-Language": "zh", "Origin": "http://test"}
    read = await client.post("/new/read", data={"spec": json.dumps(config), **beside}, headers=headers)
    assert read.json()["errors"] == []
    assert read.json()["doubts"] == [
        "未知架构 NewForCausalLM，按 Llama 的键读取：请检查结果",
        "/model/tie_word_embeddings = False：缺少 tie_word_embeddings",
        "some_new_key：未知，请确认其不影响预测",
    ]


@pytest.mark.parametrize(
    ("query", "lang", "detail", "hint"),
    [
        ("limit=0", "en", "'0' is too small", "at least 1; in the query"),
        ("limit=0", "zh", "'0' 太小", "至少 1；位于 query"),
        ("status=x", "zh", "取值 'x' 无效", "或 'failed'；位于 query"),
        ("after=x", "zh", "取值 'x' 无效", "须匹配 ^srch_[0-9a-z]{1,40}$；位于 query"),
        ("limit=x", "zh", "'x' 不是整数", "位于 query"),
    ],
)
async def test_a_parameter_says_what_it_may_be(
    client: httpx.AsyncClient, query: str, lang: str, detail: str, hint: str
) -> None:
    response = await client.get(f"/v1/searches?{query}", headers={"Accept-Language": lang})
    (error,) = assert_problem(response, 422, "invalid-request")["errors"]
    assert error["detail"] == detail
    assert error["hint"].endswith(hint)


async def test_a_request_that_a_stopping_server_cuts_off_is_told_to_come_again(client: httpx.AsyncClient) -> None:
    """As uvicorn does it when the grace for open requests is over: it cancels them."""
    app = client._transport.app  # type: ignore[attr-defined]
    begun, told = asyncio.Event(), []

    async def endless(_scope: Any, _receive: Any, _send: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    async def send(message: Any) -> None:
        told.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "app": app}
    request = asyncio.ensure_future(ObservedRequests(endless)(scope, asyncio.Event().wait, send))
    await begun.wait()
    request.cancel()
    await request
    start, body = told
    assert start["status"] == 503
    assert (b"retry-after", b"2") in start["headers"]
    assert json.loads(body["body"])["type"].endswith("overloaded")
