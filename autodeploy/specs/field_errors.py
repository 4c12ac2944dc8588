"""Turning pydantic's complaints into field errors with a JSON pointer and a hint."""

from __future__ import annotations

import re
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from autodeploy.kit.errors import MOST_LISTED, FieldError
from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import MOST_HINTS, fault_of, limits_of, one_of, quoted
from autodeploy.specs.synonyms import synonym_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pydantic_core import ErrorDetails


# What is wrong with a value that no branch of a union takes.
# What a branch takes, by the type of its complaint about a value of another kind.
_TAKES = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a_whole_number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a_number"),
    "bool_type": "a_truth_value",
    "string_type": "a_text",
}
_BOUNDED = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
# Types of complaints that are about the value itself, and so can be told as one.
OF_BRANCHES = frozenset((*_TAKES, *_BOUNDED, "literal_error"))


def fault_of_union(items: Sequence[ErrorDetails]) -> tuple[str, str]:
    """Message and hint for complaints of several branches about one value, each of a type in OF_BRANCHES.

    A value of the right kind breaks a bound, which is said; one of no right kind is told what the branches take.
    """
    expected = [item["ctx"]["expected"] for item in items if item["type"] == "literal_error"]
    choices = [one_of(expected)] if expected else []
    bounded = next((item for item in items if item["type"] in _BOUNDED), None)
    if bounded is not None:
        return fault_of(bounded)[0], joined((limits_of(bounded), *choices), "or")
    taken = dict.fromkeys(_TAKES[item["type"]] for item in items if item["type"] in _TAKES)
    if "a_number" in taken:
        taken.pop("a_whole_number", None)
    hint = joined((*choices, *(Message(f"field_fault.{name}") for name in taken)), "or")
    return Message("field_fault.is_invalid", value=quoted(items[0]["input"])), hint


# Branch labels that pydantic puts into the location of a union; they are no keys of the document.
_OF_KEY = "[key]"  # what pydantic adds to the place of a mapping's key
_BRANCHES = ("function-", "tuple[", "dict[", "list[", "constrained-", "literal[", "nullable[")
_SCALARS = ("bool", "str", "int", "float")
_OF_KEYS = ("extra_forbidden", "missing")


def pointer(location: Iterable[int | str]) -> str:
    """The JSON pointer (RFC 6901) of a location in a document."""
    parts = [str(part).replace("~", "~0").replace("/", "~1") for part in location]
    return "".join(f"/{part}" for part in parts)


LEAST_BEGUN = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest spellings, those that the name begins first, or all when there are few."""
    known = sorted(known)
    begun = [each for each in known if len(name) >= LEAST_BEGUN and each.lower().startswith(name.lower())]
    close = list(dict.fromkeys((*begun, *get_close_matches(name, known, n=3, cutoff=0.6))))[:3]
    if close:
        return Message("common.did_you_mean", names=joined(close, "or"))
    return Message("common.one_of", names=", ".join(known)) if 0 < len(known) <= 20 else ""


def _fields_at(model: type[BaseModel] | None, location: tuple[int | str, ...]) -> list[str]:
    """Names that are valid where an unknown key was found."""
    if model is None:
        return []
    for part in location[:-1]:
        field = model.model_fields.get(str(part)) if model else None
        nested = _nested_model(field.annotation) if field is not None else None
        if nested is None:
            return []
        model = nested
    return list(model.model_fields)


def _nested_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        if (nested := _nested_model(argument)) is not None:
            return nested
    return None


_AMOUNTS = {
    "seq_length": ("4096", "4k"),
    "global_batch_size": ("512", "4k"),
    "tokens": ("1e12", "1T"),
    "num_npus": ("128", "16 nodes"),
}
_NO_NUMBER = ("int_type", "int_parsing", "float_type", "float_parsing")
_NUMBER = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9]*)?(e[-+]?[0-9]+)?")
_QUOTED = {"int_type": _NUMBER, "float_type": _NUMBER, "bool_type": re.compile("true|false")}


def _unquoted(item: ErrorDetails) -> str:
    """Hint for a number or a truth value in quotes."""
    value = item["input"]
    if item["type"] in _QUOTED and isinstance(value, str) and _QUOTED[item["type"]].fullmatch(value.strip().lower()):
        return Message("field_fault.without_quotes")
    if item["type"] == "string_type" and isinstance(value, int | float):
        return Message("field_fault.in_quotes")
    return ""


def _amount_of(item: ErrorDetails, location: tuple[int | str, ...]) -> str:
    """Forms of an amount, where it is no number."""
    examples = _AMOUNTS.get(str(location[-1])) if location else None
    if examples is None or item["type"] not in _NO_NUMBER:
        return ""
    return Message("common.such_as", example=joined(examples, "or"))


def _location(item: ErrorDetails) -> tuple[int | str, ...]:
    """The place in the document: without what pydantic adds for branches of unions and for keys of mappings."""
    location = tuple(p for p in item["loc"] if not (isinstance(p, str) and p.startswith(_BRANCHES)))
    if location and (location[-1] == _OF_KEY or (location[-1] in _SCALARS and item["type"] not in _OF_KEYS)):
        return location[:-1]
    return location


def _has_enough(item: ErrorDetails) -> bool:
    """Whether a list is told too short only because pydantic leaves out the entries that it complains about."""
    return item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]


def field_errors(
    error: ValidationError, *, prefix: str = "", model: type[BaseModel] | None = None
) -> tuple[FieldError, ...]:
    """All complaints of one validation, in document order, one per field and message; one for all of a union."""
    places: dict[tuple[int | str, ...], list[ErrorDetails]] = {}
    for item in error.errors(include_url=False, include_context=True):
        if _has_enough(item):
            continue
        places.setdefault(_location(item), []).append(item)
    errors: dict[tuple[str, str], FieldError] = {}
    unknown = 0
    for location, items in islice(places.items(), MOST_LISTED):
        path = prefix + pointer(location)
        branches = [item for item in items if item["loc"] != location and item["type"] in OF_BRANCHES]
        if len(branches) > 1:
            message, hint = fault_of_union(branches)
            errors[path, message] = FieldError(path, message, hint)
        for item in items:
            if len(branches) < 2 or item not in branches:
                unknown += item["type"] == "extra_forbidden"
                message, hint = _fault(item, location, path, model if unknown <= MOST_HINTS else None)
                errors.setdefault((path, message), FieldError(path, message, hint))
    rest = len(places) - MOST_LISTED
    return (*errors.values(), *((FieldError("", Message("common.more", count=rest)),) if rest > 0 else ()))


def _fault(
    item: ErrorDetails, location: tuple[int | str, ...], path: str, model: type[BaseModel] | None
) -> tuple[str, str]:
    """Message and hint of one complaint."""
    message, hint = fault_of(item)
    match item["type"]:
        case "extra_forbidden":
            hint = synonym_hint(path, item["input"])
            hint = (
                hint or did_you_mean(str(location[-1]), _fields_at(model, location)) or Message("common.leave_it_out")
            )
        case "model_type":
            keys = _fields_at(model, (*location, ""))
            hint = Message("specs.mapping_with", keys=", ".join(keys)) if keys else ""
        case "value_error":
            pass
        case _:
            hint = hint or limits_of(item) or _unquoted(item) or _amount_of(item, location)
    return message, hint
