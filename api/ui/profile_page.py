"""A hardware profile as a page shows it: every number under the name by which a spec overrides it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from hardware_profiles import KINDS

if TYPE_CHECKING:
    from hardware_profiles import Profile, Quantity


@dataclass(frozen=True, slots=True)
class Number:
    """One number: its dotted name in the profile, value, unit, kind and source."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class ProfilePage:
    """A profile and all its numbers by the section of the profile that they stand in; loose ones are in that of ''."""

    name: str
    title: str
    by_kind: tuple[tuple[str, int], ...]
    groups: tuple[tuple[str, tuple[Number, ...]], ...]


def profile_page(profile: Profile) -> ProfilePage:
    """The page of a profile: each chip grade and each level of the interconnect is a section of its own."""
    numbers = sorted((_number(profile, name, each) for name, each in profile.quantities.items()), key=_is_in_section)
    kinds = Counter(number.kind for number in numbers)
    return ProfilePage(
        profile.name,
        profile.title,
        tuple((kind, kinds[kind]) for kind in KINDS if kinds[kind]),
        tuple((section, tuple(members)) for section, members in groupby(numbers, key=_section)),
    )


def _section(number: Number) -> str:
    """`devices.910C` of `devices.910C.peak_tflops.bf16`, `ub` of `ub.latency_us`."""
    *sections, _ = number.name.split(".")
    return ".".join(sections[: 2 if sections[:1] == ["devices"] else 1])


def _is_in_section(number: Number) -> bool:
    return bool(_section(number))


def _number(profile: Profile, name: str, quantity: Quantity) -> Number:
    sources = profile.document.sources
    named = "; ".join(sources[key].title if key in sources else key for key in quantity.source)
    note = f" – {quantity.note}" if quantity.note else ""
    return Number(name, quantity.value, quantity.unit, quantity.kind, named + note)
