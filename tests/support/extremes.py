"""The numeric fields of a JSON Schema with the least and the greatest values that it allows."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ANY = "*"  # of a mapping: whichever key there is


class NumericField(NamedTuple):
    """Where it is, its schema, and the values at its ends; of a whole number also the one above the least."""

    path: tuple[str | int, ...]
    schema: dict[str, Any]
    ends: tuple[float, ...]


def numeric_fields(schema: dict[str, Any]) -> list[NumericField]:
    """All of them, in every branch of a choice, except what refers to itself."""
    definitions = schema.get("$defs", {})

    def variants(part: dict[str, Any], seen: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
        if "$ref" in part:
            name = part["$ref"].rpartition("/")[2]
            if name not in seen:
                rest = {key: value for key, value in part.items() if key != "$ref"}
                yield from variants({**definitions[name], **rest}, seen | {name})
            return
        choices = [each for word in ("anyOf", "oneOf", "allOf") for each in part.get(word, [])]
        for each in choices:
            yield from variants(each, seen)
        if not choices:
            yield part, seen

    def walk(part: dict[str, Any], path: tuple[str | int, ...], seen: frozenset[str]) -> Iterator[NumericField]:
        for each, below in variants(part, seen):
            if each.get("type") in ("integer", "number"):
                yield NumericField(path, each, _ends(each))
            for name, inner in each.get("properties", {}).items():
                yield from walk(inner, (*path, name), below)
            for word, step in (("additionalProperties", ANY), ("items", 0)):
                if isinstance(inner := each.get(word), dict):
                    yield from walk(inner, (*path, step), below)
            for number, inner in enumerate(each.get("prefixItems", ())):
                yield from walk(inner, (*path, number), below)

    return list(walk(schema, (), frozenset()))


def _ends(schema: dict[str, Any]) -> tuple[float, ...]:
    whole = schema["type"] == "integer"
    step = (lambda value, to: value + int(math.copysign(1, to))) if whole else math.nextafter
    least, most = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        least = step(schema["exclusiveMinimum"], math.inf)
    if "exclusiveMaximum" in schema:
        most = step(schema["exclusiveMaximum"], -math.inf)
    if whole:
        return tuple(each for each in (least, None if least is None else least + 1, most) if each is not None)
    ends = [-1e308 if least is None else least, 1e308 if most is None else most]
    return (*ends, 5e-324) if ends[0] <= 0 else tuple(ends)  # the least number above 0 that a float holds


def with_value(document: dict[str, Any], path: tuple[str | int, ...], value: float) -> dict[str, Any] | None:
    """The document with this value at the path; None where it has no such place."""
    changed = copy.deepcopy(document)
    place: Any = changed
    for step in path[:-1]:
        place = _inside(place, step)
        if not isinstance(place, dict | list) or not place:
            return None
    last = next(iter(place)) if path[-1] == ANY and isinstance(place, dict) else path[-1]
    if isinstance(place, list) != isinstance(last, int):
        return None
    place[last] = value
    return changed


def _inside(place: Any, step: str | int) -> Any:
    if isinstance(place, list):
        return place[step] if isinstance(step, int) and step < len(place) else None
    return next(iter(place.values()), None) if step == ANY else place.get(step)
