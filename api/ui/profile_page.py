"""A hardware profile as a page shows it: every number, wherever it stands in the document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_QUANTITY = frozenset({"value", "unit", "kind", "source"})
_KINDS = ("datasheet", "measured", "fitted", "assumed")


@dataclass(frozen=True, slots=True)
class Number:
    """One number: its dotted path below its group, value, unit, kind and source."""

    path: str
    value: float
    unit: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Group:
    """The numbers of one section of the profile."""

    title: str
    note: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class ProfilePage:
    """A profile and all its numbers."""

    name: str
    title: str
    by_kind: tuple[tuple[str, int], ...]
    groups: tuple[Group, ...]


def profile_page(document: Mapping[str, Any]) -> ProfilePage:
    """The page of a profile document: devices and tiers are groups of their own, loose numbers come first."""
    sources = document.get("sources") or {}
    groups: list[Group] = []
    loose = [n for key, value in document.items() if _is_quantity(value) for n in _numbers(value, (key,), sources)]
    if loose:
        groups.append(Group(str(document["title"]), "", tuple(loose)))
    for title, section in _sections(document):
        numbers = tuple(_numbers(section, (), sources))
        if numbers:
            groups.append(Group(title, _note(section), numbers))
    kinds = Counter(number.kind for group in groups for number in group.numbers)
    by_kind = tuple((kind, kinds[kind]) for kind in _KINDS if kinds[kind])
    return ProfilePage(str(document["name"]), str(document["title"]), by_kind, tuple(groups))


def _sections(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if key == "sources" or _is_quantity(value):
            continue
        if key == "devices":
            yield from ((str(name), device) for name, device in value.items())
        elif key == "tiers":
            yield from ((str(tier["name"]).replace("_", " "), tier) for tier in value)
        elif isinstance(value, Mapping):
            yield key.replace("_", " "), value


def _note(section: Any) -> str:
    kind, span = section.get("kind"), section.get("span")
    return f"{str(kind).replace('_', ' ')} · {span}" if kind and span else ""


def _is_quantity(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() >= _QUANTITY


def _numbers(value: Any, path: tuple[str, ...], sources: Mapping[str, Any]) -> Iterator[Number]:
    if _is_quantity(value):
        note = f" – {value['note']}" if value.get("note") else ""
        source = _source(value["source"], sources) + note
        yield Number(".".join(path), value["value"], str(value["unit"]), str(value["kind"]), source)
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield from _numbers(member, (*path, str(key)), sources)


def _source(keys: Any, sources: Mapping[str, Any]) -> str:
    named = [keys] if isinstance(keys, str) else list(keys)
    return "; ".join(str(sources[key]["title"]) if key in sources else str(key) for key in named)
