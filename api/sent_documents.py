"""What documents inside a request look like: its types hold them as any mapping, and read them when all is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Ref = Callable[[str], dict[str, str]]

NULL = {"type": "null"}
MAX_BASELINE_FILE = 1_000_000


def say_what_is_inside(definitions: dict[str, Any], sent: Iterable[str], ref: Ref) -> None:
    """Changes the schemas of the requests `sent` so that they say it.

    Parameters
    ----------
    definitions : schemas by type name.
    ref : a reference to one of them.
    """
    for name in sent:
        definitions[name] = _said(name, definitions[name], ref)


def _said(name: str, schema: dict[str, Any], ref: Ref) -> dict[str, Any]:
    properties = schema["properties"]
    if "spec" in properties:
        properties["spec"] = _optional(ref("Spec")) if "anyOf" in properties["spec"] else ref("Spec")
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


def _optional(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, NULL]}


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
