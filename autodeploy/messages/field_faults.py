"""What is wrong with a field, by pydantic's complaint or a validator of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.messages.message import Message, message_or

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_QUOTED = 40
# What a value is, by the type of pydantic's complaint; the hint says what it should be.
_QUOTING: dict[str, str] = {
    **dict.fromkeys(("greater_than", "greater_than_equal"), "is_too_small"),
    **dict.fromkeys(("less_than", "less_than_equal"), "is_too_big"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "is_no_whole_number"),
    **dict.fromkeys(("float_parsing", "float_type"), "is_no_number"),
    "model_type": "is_no_mapping",
    "bool_type": "is_neither_true_nor_false",
    "literal_error": "is_not_known_here",
}
_BOUNDS = ("ge", "gt", "le", "lt", "expected")


class FieldFault(ValueError):
    """What a validator of a field says: what is wrong, and what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def fault_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Message and hint of a pydantic complaint; the value is quoted where that says what is wrong."""
    if item["type"] == "value_error":
        return _of_validator(item)
    quoting = _QUOTING.get(item["type"])
    if quoting is not None:
        return Message(f"field_fault.{quoting}", value=quoted(item["input"])), ""
    return bare_fault_of(item), ""


def bare_fault_of(item: Mapping[str, Any]) -> str:
    """What a value should be; pydantic's own English where the catalogue has no text for its type."""
    if item["type"] == "value_error":
        return _of_validator(item)[0]
    bound = next((item["ctx"][name] for name in _BOUNDS if name in item.get("ctx", {})), "")
    return message_or(str(item["msg"]), f"pydantic.{item['type']}", bound=bound)


def quoted(value: object) -> str:
    """A value as a complaint quotes it: whole numbers and short texts as they are, what is long cut off."""
    text = repr(value)
    return text if len(text) <= MOST_QUOTED else text[: MOST_QUOTED - 3] + "..."


def _of_validator(item: Mapping[str, Any]) -> tuple[str, str]:
    error = item.get("ctx", {}).get("error")
    if isinstance(error, FieldFault):
        return error.message, error.hint
    said = error.args[0] if isinstance(error, ValueError) and error.args else item["msg"]
    return (said if isinstance(said, Message) else str(said).removeprefix("Value error, ")), ""
