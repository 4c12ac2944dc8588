"""What is wrong with a value that no branch of a union takes: one complaint for those of all branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import fault_of, limits_of, one_of, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import ErrorDetails

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
