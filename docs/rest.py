"""The REST API as a page, from its own OpenAPI document."""

from __future__ import annotations

import re
from typing import Any

from docs.schema_tables import code, table, type_of

METHODS = ("get", "post", "patch", "put", "delete")
# Said here, because the standard phrases differ between versions of Python.
ANSWERS = {
    "200": "done",
    "204": "done; there is no body",
    "400": "the body is not well formed",
    "401": "an API key is needed; only where the server asks for keys",
    "403": "the key's scope does not allow it",
    "404": "there is nothing under this address",
    "409": "the state of the resource does not allow it",
    "413": "the body is too large",
    "415": "the body is neither JSON nor YAML",
    "422": "not valid; `errors` says where",
    "429": "as many searches of the key wait or run as it allows",
    "500": "a bug; the log has its trace under `request_id`",
    "507": "the disk of the database is full; what is stored can be read",
    "503": "the database does not answer, or there is no time for this now",
}
# Said once for all routes.
ANY_ROUTE = frozenset({"401", "403", "413", "500", "503"})
STANDARD = frozenset({"Successful Response", "No Content"})
PROBLEM_ROWS = (
    ("`urn:autodeploy:problem:invalid-spec`", "422", "the document is not valid; `errors` names every bad field"),
    (
        "`urn:autodeploy:problem:unsupported`",
        "422",
        "the document is right, but asks for something that is not modelled",
    ),
    ("`urn:autodeploy:problem:invalid-request`", "422", "a query, path or header parameter is not valid"),
    ("`urn:autodeploy:problem:not-found`", "404", "there is nothing under this address"),
    ("`urn:autodeploy:problem:conflict`", "409", "the state of the resource does not allow it"),
    ("`urn:autodeploy:problem:unauthorized`", "401", "an API key is needed, or the one that was sent is not valid"),
    ("`urn:autodeploy:problem:forbidden`", "403", "the key's scope does not allow it"),
    (
        "`urn:autodeploy:problem:limit-reached`",
        "429",
        "as much is under way as the key allows; `Retry-After` says when to try",
    ),
    ("`urn:autodeploy:problem:overloaded`", "503", "too many predictions at once, or one took too long; try again"),
    ("`urn:autodeploy:problem:unavailable`", "503", "the database does not answer; try again"),
    ("`urn:autodeploy:problem:storage-full`", "507", "the disk of the database is full; what is stored can be read"),
    ("`urn:autodeploy:problem:content-too-large`", "413", "the body is longer than the server or the key allows"),
    ("`urn:autodeploy:problem:internal`", "500", "a bug; the log has its trace under `request_id`"),
)


def openapi() -> dict[str, Any]:
    """The OpenAPI document that the server publishes at /openapi.json."""
    from api.app import create_app

    return create_app().openapi()


def rest_pages() -> dict[str, str]:
    """Pages of the reference by name: errors and all routes, and the routes of each resource in full."""
    text = """# The REST API

Bodies are JSON, or YAML with `Content-Type: application/yaml`. The machine-readable description is `/openapi.json`.
An infeasible spec is a result with its binding rules, not an error.

## Errors

Problem documents after RFC 9457 (`application/problem+json`): `type`, `title`, `status`, `detail`, `hint`, `instance`,
`request_id` and `errors[]` with `pointer`, `detail` and `hint`.

"""
    text += table(("type", "status", "meaning"), PROBLEM_ROWS)
    text += "\nEvery route may answer " + ", ".join(code(status) for status in sorted(ANY_ROUTE)) + ";\n"
    text += "routes without a key no `401` and `403`. Routes name what they answer besides.\n"
    pages: dict[str, str] = {}
    rows: dict[str, list[tuple[str, str]]] = {}
    for path, methods in openapi()["paths"].items():
        for method in METHODS:
            if method in methods:
                name, operation = f"{method.upper()} {path}", methods[method]
                (tag,) = operation["tags"]
                pages.setdefault(tag, f"# REST API: {tag}\n\nBack to [all routes](../rest.md).\n")
                pages[tag] += _route(name, operation)
                anchor = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
                rows.setdefault(tag, []).append((f"[{name}](rest/{tag}.md#{anchor})", operation["summary"]))
    text += "".join(f"\n## {tag}\n\n" + table(("route", "what it does"), of_tag) for tag, of_tag in rows.items())
    return {"rest": text} | {f"rest/{tag}": page for tag, page in pages.items()}


def _route(name: str, operation: dict[str, Any]) -> str:
    text = f"\n## {name}\n\n{operation['summary']}. {' '.join(operation.get('description', '').split())}\n\n"
    rows = [
        (code(each["name"]), each["in"], type_of(each.get("schema", {})), each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    if rows:
        text += table(("parameter", "in", "type", "meaning"), rows) + "\n"
    answers = [
        (code(status), _answer(status, each))
        for status, each in sorted(operation["responses"].items())
        if status not in ANY_ROUTE or "application/problem+json" not in each["content"]
    ]
    return text + table(("status", "meaning"), answers)


def _answer(status: str, answer: dict[str, Any]) -> str:
    said = str(answer["description"])
    plain = said in STANDARD or (status >= "400" and "model" not in answer and said[:1].isupper() and status in ANSWERS)
    return ANSWERS.get(status, said) if plain else said
