"""Faults of a field, by pydantic's complaint or a validator of ours."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING, Any, Self

from autodeploy.messages.message import Message, joined, message_or

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from json import JSONDecodeError


# What errors of Python's own libraries say, by key where the catalogue has it.
def json_fault(error: JSONDecodeError) -> str:
    """Fault of a JSON text, without the place."""
    words = error.msg.replace("','", "comma").replace("':'", "colon").lower()
    return message_or(error.msg, "json." + re.sub(r"[^a-z]+", "_", words).strip("_"))


def os_fault(error: OSError) -> str:
    """Why a file, address or device can't be used."""
    name = errno.errorcode.get(error.errno or 0, "").lower()
    return message_or(error.strerror or str(error), f"os.{name}")


MOST_QUOTED = 40
MOST_HINTS = 20
"""Of one document's mistakes, those for which the closest spelling is looked for: it takes a millisecond or two."""
_BETWEEN_WORDS = re.compile(r", | or ")
# What a value is, by the type of pydantic's complaint; the hint says what it should be.
_QUOTING: dict[str, str] = {
    **dict.fromkeys(("greater_than", "greater_than_equal"), "is_too_small"),
    **dict.fromkeys(("less_than", "less_than_equal"), "is_too_big"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "is_no_whole_number"),
    **dict.fromkeys(("float_parsing", "float_type"), "is_no_number"),
    **dict.fromkeys(("tuple_type", "list_type"), "is_no_list"),
    **dict.fromkeys(("model_type", "dict_type"), "is_no_mapping"),
    "string_type": "is_no_text",
    "finite_number": "is_not_finite",
    "bool_type": "not_boolean",
    **dict.fromkeys(("literal_error", "string_pattern_mismatch"), "is_invalid"),
}
_WANTED = {"is_no_whole_number": "a_whole_number", "is_no_number": "a_number"}
# Of the key itself, by the type of a complaint.
_OF_KEYS = {"extra_forbidden": "common.unknown_key", "missing": "field_fault.is_missing"}
# What is counted, by the type of a complaint about too few or too many.
_COUNTED = {
    **dict.fromkeys(("too_short", "too_long"), "entries"),
    **dict.fromkeys(("string_too_short", "string_too_long"), "characters"),
}
_LIMITS = {"ge": "at_least", "gt": "more_than", "le": "at_most", "lt": "less_than"}


class FieldFault(ValueError):
    """Fault found by a validator of a field, and a hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint

    @classmethod
    def needs(cls, wanted: str) -> Self:
        """Fault of a field that says nothing without another, given as `name` or `name: value`."""
        return cls(Message("common.it_needs_field", name=wanted), Message("common.leave_it_out_or", instead=wanted))


def fault_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Message and hint of a pydantic complaint; the value is quoted where that says what is wrong.

    Pydantic's own English where no text is known for its type.
    """
    if item["type"] == "value_error":
        return _of_validator(item)
    quoting, counted = _QUOTING.get(item["type"]), _COUNTED.get(item["type"])
    if item["input"] == "" and quoting in _WANTED:
        return Message("field_fault.is_empty"), Message(f"field_fault.{_WANTED[quoting]}")
    if quoting is not None:
        return Message(f"field_fault.{quoting}", value=quoted(item["input"])), ""
    if counted is not None:
        return _of_count(item, counted)
    if item["type"] in _OF_KEYS:
        return Message(_OF_KEYS[item["type"]], name=repr(item["loc"][-1])), ""
    return str(item["msg"]), ""


def limits_of(item: Mapping[str, Any]) -> str:
    """The bounds that a value broke, or what is known instead, as a hint."""
    context = item.get("ctx") or {}
    if item["type"] == "literal_error":
        return one_of((context["expected"],))
    if item["type"] == "string_pattern_mismatch":
        return Message("field_fault.matching", pattern=context["pattern"])
    broken = [
        Message(f"field_fault.{word}", bound=_short(context[key])) for key, word in _LIMITS.items() if key in context
    ]
    return joined(broken) if len(broken) > 1 else broken[0] if broken else ""


def _short(bound: object) -> object:
    """A bound without the zero of a whole one."""
    return f"{bound:g}" if isinstance(bound, float) and abs(bound) < 1e6 else bound


def one_of(expected: Iterable[str]) -> Message:
    """The words of some fixed choices, each as pydantic lists them in English: `'a', 'b' or 'c'`."""
    *first, last = (word for each in expected for word in _BETWEEN_WORDS.split(each))
    return Message("common.one_of", names=joined((joined(first), last), "or") if first else last)


def quoted(value: object) -> str:
    """A value as a complaint quotes it: whole numbers and short texts as they are, what is long cut off."""
    text = repr(value)
    return text if len(text) <= MOST_QUOTED else text[: MOST_QUOTED - 3] + "..."


def _of_count(item: Mapping[str, Any], counted: str) -> tuple[str, str]:
    """Number of entries or characters of a value, and its limit."""
    context = item["ctx"]
    number = context.get("actual_length") or len(item["input"])
    message = Message(f"field_fault.has_{counted}", count=number) if number else Message("field_fault.is_empty")
    if "min_length" in context:
        return message, Message(f"field_fault.at_least_{counted}", count=context["min_length"])
    return message, Message(f"field_fault.at_most_{counted}", bound=context["max_length"])


def _of_validator(item: Mapping[str, Any]) -> tuple[str, str]:
    error = item.get("ctx", {}).get("error")
    if isinstance(error, FieldFault):
        return error.message, error.hint
    said = error.args[0] if isinstance(error, ValueError) and error.args else item["msg"]
    return (said if isinstance(said, Message) else str(said).removeprefix("Value error, ")), ""
