"""The OpenAPI document: what FastAPI makes of the routes, and the spec as people write it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.refusals import add_refusals
from api.sent_documents import never_null, say_what_is_inside
from autodeploy.services.measured_intake import MeasuredFile
from autodeploy.services.schemas import input_definitions

if TYPE_CHECKING:
    from fastapi import FastAPI
    from pydantic import BaseModel

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

    Parameters
    ----------
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
    from api.problems import Problem  # its handlers import FastAPI, which documents do not need

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
    """What any operation may answer, health less than others; and the key that it takes where this server asks."""
    from api.access import OPEN_PATHS
    from api.problems import responses

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
