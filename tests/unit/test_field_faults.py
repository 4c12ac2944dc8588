"""One complaint a mistake: unions, lengths and empty fields of documents."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from autodeploy.messages import in_language
from autodeploy.specs.field_errors import field_errors


class Document(BaseModel, strict=True):
    effort: Literal["fast", "deep"] | Annotated[float, Field(gt=0)] = "fast"
    axis: int | float | bool | str = 1
    axes: dict[str, int | bool] = {}
    names: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)] = ("a",)
    title: Annotated[str, Field(min_length=1, max_length=3)] = "a"
    pairs: Annotated[tuple[int, ...], Field(min_length=2)] = (1, 2)
    share: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class Closed(BaseModel, extra="forbid"):
    days: float = 1.0


class Sent(BaseModel):
    days: float = 1.0
    cards: int = 1


def told(document: dict[str, Any], kind: type[BaseModel] = Document) -> list[tuple[str, str, str]]:
    with pytest.raises(ValidationError) as raised:
        kind.model_validate(document)
    return [(fault.path, str(fault.message), str(fault.hint)) for fault in field_errors(raised.value, model=kind)]


@pytest.mark.parametrize(
    ("document", "path", "message", "hint"),
    [
        ({"effort": "high"}, "/effort", "invalid value 'high'", "one of 'fast' or 'deep' or a number"),
        ({"effort": -1.0}, "/effort", "-1.0 is too small", "more than 0 or one of 'fast' or 'deep'"),
        ({"axis": None}, "/axis", "invalid value None", "a number, true/false or text"),
        ({"axes": {"bool": []}}, "/axes/bool", "invalid value []", "a whole number or true/false"),
        ({"names": ()}, "/names", "must not be empty", "at least one entry"),
        ({"names": ("a", "b", "c")}, "/names", "3 entries", "at most 2 entries"),
        ({"names": 3}, "/names", "3 is not a list", ""),
        ({"pairs": (1,)}, "/pairs", "1 entry", "at least 2 entries"),
        ({"title": ""}, "/title", "must not be empty", "at least one character"),
        ({"title": "long"}, "/title", "4 characters", "at most 3 characters"),
        ({"title": 3}, "/title", "3 is not text", "put it in quotes"),
        ({"share": math.nan}, "/share", "nan is not a finite number", ""),
    ],
)
def test_a_mistake_has_one_complaint(document: dict[str, Any], path: str, message: str, hint: str) -> None:
    assert told(document) == [(path, message, hint)]


def test_mistakes_beside_a_union_are_kept() -> None:
    assert [path for path, _, _ in told({"effort": "high", "axis": None, "title": ""})] == [
        "/effort",
        "/axis",
        "/title",
    ]


def test_an_empty_field_of_a_form_is_no_wrong_number() -> None:
    assert told({"days": "", "cards": ""}, Sent) == [
        ("/days", "must not be empty", "a number"),
        ("/cards", "must not be empty", "a whole number"),
    ]


def test_unions_are_told_in_chinese() -> None:
    with pytest.raises(ValidationError) as raised:
        Document.model_validate({"effort": "high"})
    (fault,) = field_errors(raised.value)
    assert in_language(fault.message, "zh") == "取值 'high' 无效"
    assert in_language(fault.hint, "zh").endswith("或一个数字")


def test_a_list_with_a_wrong_entry_is_not_too_short_as_well() -> None:
    assert told({"pairs": (1, "x")}) == [("/pairs/1", "'x' is not a whole number", "")]


def test_an_unknown_key_without_a_close_one_is_to_be_left_out() -> None:
    with pytest.raises(ValidationError) as raised:
        Closed.model_validate({"foo": 1})
    (fault,) = field_errors(raised.value)
    assert (fault.path, fault.message, fault.hint) == ("/foo", "unknown key 'foo'", "leave it out")
