"""The one base of every document: frozen, unknown keys refused, no infinities, types as JSON has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticKnownError, core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler


def omitted(description: str, *, at: object = None, **limits: Any) -> Any:
    """A field that documents leave out where it has the value `at`, its default."""
    return Field(
        description=description, exclude_if=lambda value: value is None if at is None else value == at, **limits
    )


def _is_number(value: Any) -> Any:
    if isinstance(value, bool | str | bytes):
        raise PydanticKnownError("float_type")
    return value


def _is_whole(value: Any) -> Any:
    if isinstance(value, bool | str | bytes):
        raise PydanticKnownError("int_type")
    return value


_NUMBERS = {"int": _is_whole, "float": _is_number}
# Where a schema holds others; a model inside is a document of its own, and keys are always text.
_INNER = ("schema", "items_schema", "values_schema", "fields", "choices", "steps")


def _exact(schema: Any, cls: type[BaseModel]) -> Any:
    """The same schema with what pydantic would read as a number or a truth value, and is none, refused."""
    kind = schema["type"]
    if kind == "bool":
        return {**schema, "strict": True}
    if kind in _NUMBERS:
        return core_schema.no_info_before_validator_function(_NUMBERS[kind], schema)
    if kind == "model" and schema["cls"] is not cls:
        return schema
    changed = dict(schema)
    for name in _INNER:
        inner = schema.get(name)
        if isinstance(inner, dict) and isinstance(inner.get("type"), str):
            changed[name] = _exact(inner, cls)
        elif isinstance(inner, dict):
            changed[name] = {key: _exact(each, cls) for key, each in inner.items()}
        elif isinstance(inner, list):
            changed[name] = [
                (_exact(each[0], cls), *each[1:]) if isinstance(each, tuple) else _exact(each, cls) for each in inner
            ]
    return changed


class Document(BaseModel):
    """A value that goes in or out. Immutable; unknown keys are an error; numbers are finite.

    Types are those that its JSON Schema says: a number is no text and no truth value, a truth value is no number.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        exact: core_schema.CoreSchema = _exact(handler(source), cls)
        return exact


class Answer(Document):
    """A document that only goes out: what checks it is made with the first one, not by every program that might."""

    model_config = ConfigDict(defer_build=True)
