"""Which profile and device a published run means: names that mean the same, and the nearest one to hardware that has no
profile.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.specs.record_words import key
from hardware_profiles.loader import list_profiles, load_profile
from hardware_profiles.schema import RecordNames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def profile_named(name: str) -> tuple[str | None, bool]:
    """The shipped profile that a name means, and whether it means that one; (None, False) without any near."""
    if name in list_profiles() or name.endswith((".yaml", ".yml")) or "/" in name:
        return name, True
    word = key(name)
    spelled = {key(shipped): shipped for shipped in list_profiles()}
    if word in spelled:
        return spelled[word], True
    names = _record_names()
    if profile := _match(word, {name: each.same for name, each in names.items()}):
        return profile, True
    # The profile whose chip is most alike: of its generation first, then of its maker.
    nearest = _match(word, {name: each.generation for name, each in names.items()})
    return nearest or _match(word, {name: each.maker for name, each in names.items()}), False


def profile_of_device(device: str) -> str | None:
    """The shipped profile that has a device."""
    return next((p for p in list_profiles() if device_named(p, device)[1]), None)


def device_named(profile: str, name: str) -> tuple[str | None, bool]:
    """The device of a shipped profile that a name means, and whether it means that one; None: the profile's default."""
    grades = _devices(profile)
    word = key(name)
    for grade_name in grades:
        if word in {
            key(grade_name),
            f"ascend{key(grade_name)}",
            f"ascend_{key(grade_name)}",
            f"nvidia_{key(grade_name)}",
        }:
            return grade_name, True
    names = _record_names().get(profile, RecordNames())
    if grade := _match(word, names.grades):
        return grade, True
    if len(grades) == 1 and profile_named(name) == (profile, True):
        return grades[0], True
    return _match(word, names.nearest_grades), False


def _devices(profile: str) -> tuple[str, ...]:
    return tuple(load_profile(profile, calibrated=False).devices) if profile in list_profiles() else ()


def _record_names() -> dict[str, RecordNames]:
    """Under which names records know each profile; each profile's own file says it."""
    return {name: load_profile(name, calibrated=False).document.record_names for name in list_profiles()}


def _match(word: str, patterns: Mapping[str, Iterable[str]]) -> str | None:
    matches = (
        name for name, patterns_of in patterns.items() if any(re.fullmatch(pattern, word) for pattern in patterns_of)
    )
    return next(matches, None)
