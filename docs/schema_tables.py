"""Tables of fields out of JSON Schemas, so that a page of the reference says what the code says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pydantic import BaseModel

Schema = dict[str, Any]
Mode: TypeAlias = Literal["validation", "serialization"]
LIMITS = (
    ("ge", ">= {}"),
    ("gt", "> {}"),
    ("le", "<= {}"),
    ("lt", "< {}"),
    ("minimum", ">= {}"),
    ("exclusiveMinimum", "> {}"),
    ("maximum", "<= {}"),
    ("exclusiveMaximum", "< {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} entries"),
    ("maxItems", "at most {} entries"),
)
LONGEST_DEFAULT = 60


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars and line breaks inside cells are made harmless."""
    lines = [f"| {' | '.join(titles)} |", "|" + " --- |" * len(titles)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def code(value: object) -> str:
    """Code, or nothing for nothing."""
    text = str(value)
    return f"`{text}`" if text else ""


def _cell(value: str) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def schemas_of(models: Iterable[type[BaseModel]], mode: Mode = "validation") -> dict[str, Schema]:
    """Schemas of the models by name, each followed by those it refers to in the order in which they are met."""
    schemas: dict[str, Schema] = {}
    for model in models:
        schema = model.model_json_schema(mode=mode)
        definitions: dict[str, Schema] = schema.get("$defs", {})
        waiting = [(str(schema.get("title", model.__name__)), schema)]
        while waiting:
            name, each = waiting.pop(0)
            if name in schemas or "properties" not in each:
                continue
            schemas[name] = each
            waiting += [(other, definitions[other]) for other in _references(each) if other in definitions]
    return schemas


def model_tables(
    models: Iterable[type[BaseModel]], *, mode: Mode = "validation", elsewhere: Mapping[str, str] | None = None
) -> str:
    """A section for each model and each that it refers to: its docstring and a table of its fields.

    elsewhere : pages of models that others describe, by name, beside the page of the text: these are linked.
    """
    pages = elsewhere or {}
    schemas = schemas_of(models, mode)
    return "\n".join(_section(name, each, pages) for name, each in schemas.items() if name not in pages)


def _section(name: str, schema: Schema, elsewhere: Mapping[str, str]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (code(field), type_of(each, elsewhere), "required" if field in required else _default(each), _meaning(each))
        for field, each in schema["properties"].items()
    ]
    about = str(schema.get("description", "")).replace("\n\n", "\n").replace("\n", " ")
    return f"## {name}\n\n{about}\n\n" + table(("field", "type", "default", "meaning and limits"), rows)


def _references(schema: Any) -> list[str]:
    """Names of the definitions that a schema uses, in order of appearance."""
    if isinstance(schema, dict):
        names = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
        return names + [name for key, value in schema.items() if key != "$defs" for name in _references(value)]
    if isinstance(schema, list):
        return [name for value in schema for name in _references(value)]
    return []


def type_of(schema: Schema, elsewhere: Mapping[str, str] | None = None) -> str:
    """The type of a field in words, models as links: to the page that `elsewhere` has for one, else to this one."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}]({(elsewhere or {}).get(name, '')}#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(type_of(each, elsewhere) for each in schema[key]))
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"])
    if "const" in schema:
        return code(schema["const"])
    match schema.get("type"):
        case "array":
            items = schema.get("items") or {}
            each_of = [items] if items else schema.get("prefixItems", [])
            inner = " or ".join(type_of(each, elsewhere) for each in each_of)
            return f"list of {inner}" if inner else "list"
        case "object":
            values = schema.get("additionalProperties")
            return f"mapping to {type_of(values, elsewhere)}" if isinstance(values, dict) and values else "mapping"
        case "null":
            return "null"
        case None:
            return "anything"
        case kind:
            return str(kind)


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return ""
    text = json.dumps(schema["default"], ensure_ascii=False)
    return code(text) if len(text) <= LONGEST_DEFAULT else "see its own table"


def _meaning(schema: Schema) -> str:
    parts = [str(schema["description"])] if "description" in schema else []
    limits = dict.fromkeys(text for each in _branches(schema) for text in _limits(each))
    return "; ".join([*parts, *limits])


def _branches(schema: Schema) -> list[Schema]:
    return [schema, *schema.get("anyOf", ())]


def _limits(schema: Schema) -> list[str]:
    limits = [text.format(f"{schema[key]:,}") for key, text in LIMITS if key in schema]
    if "pattern" in schema:
        limits.append(f"matches {code(schema['pattern'])}")
    return limits
