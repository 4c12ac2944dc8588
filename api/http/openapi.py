"""The OpenAPI document: what FastAPI makes of the routes, and the spec as people write it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from autodeploy.analysis.intake import input_definitions
from autodeploy.analysis.launch_checks.flag_rules import flag_rules
from autodeploy.messages.catalogue import catalogue
from autodeploy.service.clusters.overlays import MeasuredFile
from autodeploy.space.rules import load_rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fastapi import FastAPI
    from pydantic import BaseModel

    Ref = Callable[[str], dict[str, str]]


# What a schema cannot say.
KEY = "x-refusals"
# Group -> sections of the catalogue: the rooms that say them.
SECTIONS = {
    "body": ("api", "json"),
    "spec": (
        *("specs", "common", "profiles", "evaluation", "planner", "post_training", "ranking", "rl_planning", "solver"),
        *("stack", "strategies", "rule", "what_if", "training_run", "ablation", "calibration"),
    ),
    "strategy": ("checks", "exporters", "flag_rule", "rehearsal"),
    "file": ("importers", "json", "os", "profiles"),
    "service": ("services", "store", "jobs", "settings", "api", "common"),
}
# A document inside a request is read by its own schema, of `GET /v1/schemas`; a `config.json` or a file by its format.
INSIDE = "inside"
WITH_BODY = (*SECTIONS, INSIDE)
WITHOUT_BODY = ("service",)
# What an exporter refuses is said of strategies; a rehearsal's own spec can be refused too, and a stored plan's.
EXPORTS = frozenset({"export_plan", "get_plan_commissioning", "get_plan_operators"})
# What the schema says too, in our words and in pydantic's.
SAID_BY_SCHEMA = ("field_fault", "pydantic")
KEYS_SAID_BY_SCHEMA = frozenset({"common.unknown_key"})
# Of the same section, what no schema says: numbers that no database keeps, values of a whole document.
BEYOND_SCHEMA = {"body": ("field_fault.at_most_entries", "field_fault.is_not_finite", "field_fault.is_too_big")}


@cache
def groups() -> dict[str, dict[str, str]]:
    """Every group: its keys with their sentences."""
    said = [rule.text for rule in load_rules()] + [rule.text for rule in flag_rules()]
    texts = {text.key: str(text) for text in said} | _whole(catalogue("en")) | _of_python()
    by_schema = {key for key in texts if key.partition(".")[0] in SAID_BY_SCHEMA} | KEYS_SAID_BY_SCHEMA
    texts_of_groups = {
        group: {
            key: text
            for key, text in sorted(texts.items())
            if (_section(key) in names and key not in by_schema) or key in BEYOND_SCHEMA.get(group, ())
        }
        for group, names in SECTIONS.items()
    }
    return texts_of_groups | {INSIDE: {key: texts[key] for key in sorted(by_schema)}}


def _of_python() -> dict[str, str]:
    """Words of Python on JSON, by which answers name them."""
    keys = [key for key in catalogue("zh") if _section(key) == "json"]
    return {key: key.partition(".")[2].replace("_", " ") for key in keys}


def _whole(texts: dict[str, str]) -> dict[str, str]:
    """Texts by the keys that answers name: plural forms of one are one, in the form of many."""
    plural = {key.removesuffix("_other") for key in texts if key.endswith("_other")}
    forms = {f"{key}_{form}" for key in plural for form in ("one", "other")}
    return {key: text for key, text in texts.items() if key not in forms} | {k: texts[f"{k}_other"] for k in plural}


def _section(key: str) -> str:
    return key.partition(".")[0]


def add_refusals(document: dict[str, Any]) -> None:
    """Completes an OpenAPI document: the groups, and for each operation that refuses anything their names."""
    document[KEY] = groups()
    for methods in document["paths"].values():
        for operation in methods.values():
            if "422" in operation["responses"]:
                exports = ("spec", "strategy") if operation["operationId"] in EXPORTS else ()
                operation[KEY] = [*(WITH_BODY if "requestBody" in operation else WITHOUT_BODY), *exports]


# What documents inside a request look like.
NULL = {"type": "null"}
MAX_BASELINE_FILE = 1_000_000


def say_what_is_inside(definitions: dict[str, Any], sent: Iterable[str], ref: Ref) -> None:
    """Changes the schemas of the requests `sent` so that they say it.

    definitions : schemas by type name.
    ref : a reference to one of them.
    """
    for name in sent:
        definitions[name] = _said(name, definitions[name], ref)


def _said(name: str, schema: dict[str, Any], ref: Ref) -> dict[str, Any]:
    properties = schema["properties"]
    if "spec" in properties:
        properties["spec"] = {"anyOf": [ref("Spec"), NULL]} if "anyOf" in properties["spec"] else ref("Spec")
    if name == "CompareRequest":
        properties["plans"]["items"] = {"anyOf": [{"type": "string"}, _STORED]}
    if name == "CheckRequest":
        properties["baseline"] = {
            "description": properties["baseline"].get("description", ""),
            "anyOf": [{"type": "string"}, _STORED, _FILE, NULL],
        }
    if name == "WhyNotRequest":
        properties["strategy"] = {"allOf": [ref("Strategy")], "minProperties": 1}
        return _either(schema, "plan_id", "spec")
    if "file" in properties:
        return _either(schema, "spec", "file")
    return schema


# As this service gave it; `inside` among an operation's refusals says that it is read by its own schema.
_STORED = {
    "type": "object",
    "description": "a PlanSet (its best plan is taken); in a check a plan or the report of a check, too",
    "not": {"required": ["file"]},
}
_FILE = {
    "type": "object",
    "description": "the launch before a change",
    "properties": {
        "file": {"type": "string", "minLength": 1, "maxLength": MAX_BASELINE_FILE},
        "filename": {"type": "string", "maxLength": 200},
    },
    "required": ["file"],
    "additionalProperties": False,
}


def _either(schema: dict[str, Any], one: str, other: str) -> dict[str, Any]:
    """The schema of an object that has exactly one of two members; the other may be null."""
    kinds = []
    for given, absent in ((one, other), (other, one)):
        properties = dict(schema["properties"])
        properties[given] = never_null(properties[given])
        properties[absent] = NULL
        required = sorted({*schema.get("required", ()), given})
        kinds.append(
            {**schema, "title": f"{schema['title']} by {given}", "properties": properties, "required": required}
        )
    return {"title": schema["title"], "description": schema.get("description", ""), "anyOf": kinds}


def never_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value that may be left out, and is no `null` where it is given."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != NULL]
    if len(kinds) != 1:
        return schema
    return {**{key: value for key, value in schema.items() if key not in {"anyOf", "default"}}, **kinds[0]}


_REF = "#/components/schemas/{model}"
INPUT_REF = "#/components/schemas/Input{model}"
SPEC_SCHEMA = "SpecDocument"
# Too long a body, and a bug.
EVERYWHERE = (413, 500)
# No key, too small a scope, too many requests of it, and a database that cannot say whose the key is.
WHERE_KEYS_ARE_ASKED_FOR = (401, 403, 429, 503)

EXAMPLE_SPEC: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": {"profile": "cloudmatrix-384", "num_npus": 384},
    "training": {"seq_length": 4096, "global_batch_size": 15360, "tokens": 14.8e12},
}
EXAMPLE_STRATEGY: dict[str, Any] = {"tp": 2, "pp": 16, "vpp": 2, "ep": 32, "micro_batch_size": 1}


def spec_request_body(*, with_strategy: bool = False) -> dict[str, Any]:
    """The request body of a route that takes a spec."""
    example = EXAMPLE_SPEC | {"strategy": EXAMPLE_STRATEGY} if with_strategy else EXAMPLE_SPEC
    content = {
        "schema": {"$ref": _REF.format(model=SPEC_SCHEMA)},
        "examples": {"deepseek-v3": {"summary": "DeepSeek-V3 on 384 cards of CloudMatrix 384", "value": example}},
    }
    return {"requestBody": {"required": True, "content": {"application/json": content, "application/yaml": content}}}


# Documents that routes take besides a spec.
_SENT: dict[str, type[BaseModel]] = {}


def input_ref(name: str) -> dict[str, str]:
    """A document as it may be sent."""
    return {"$ref": _REF.format(model=SPEC_SCHEMA) if name == "Spec" else INPUT_REF.format(model=name)}


def document_request_body(model: type[BaseModel]) -> dict[str, Any]:
    """The request body of a route that takes another document."""
    _SENT[model.__name__] = model
    content = {"schema": input_ref(model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": content, "application/yaml": content}}}


def install(app: FastAPI, *, with_keys: bool) -> None:
    """Makes the app's OpenAPI document complete; it is made once.

    with_keys : whether this server asks for API keys.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            _complete(document)
            _add_access(document, with_keys=with_keys)
            add_refusals(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _complete(document: dict[str, Any]) -> None:
    from api.http.problems import Problem  # its handlers import FastAPI, which documents do not need

    schemas = document["components"]["schemas"]
    problem = Problem.model_json_schema(ref_template=_REF)
    schemas |= problem.pop("$defs")
    schemas["Problem"] = problem
    # Inputs are wider than the outputs of the same name: a batch may be a number, a model a preset's name.
    inputs = input_definitions([*_SENT.values(), MeasuredFile], ref_template=INPUT_REF)
    say_what_is_inside(inputs, _SENT, input_ref)
    for name, schema in inputs.items():
        schemas[SPEC_SCHEMA if name == "Spec" else f"Input{name}"] = schema
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                # A parameter may be left out, but it is no `null`: there it would be a text of four letters.
                parameter["schema"] = never_null(parameter["schema"])


def _add_access(document: dict[str, Any], *, with_keys: bool) -> None:
    """Answers of any operation, fewer for health; and the key that it takes where this server asks."""
    from api.http.access import OPEN_PATHS
    from api.http.problems import responses

    if with_keys:
        scheme = {"type": "http", "scheme": "bearer", "description": "an API key: `autodeploy keys create`"}
        document["components"]["securitySchemes"] = {"key": scheme}
    for path, methods in document["paths"].items():
        common = responses(*(EVERYWHERE if path in OPEN_PATHS else (*EVERYWHERE, *WHERE_KEYS_ARE_ASKED_FOR)))
        anyway = {str(status): answer for status, answer in common.items()}
        for operation in methods.values():
            operation["responses"] = dict(sorted((anyway | operation["responses"]).items()))
            if with_keys and path not in OPEN_PATHS:
                operation["security"] = [{"key": []}]
