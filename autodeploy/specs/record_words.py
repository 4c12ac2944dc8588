"""Words that published runs use, and the vocabulary's word for each, of `record_words.yaml`.

Keys are spelled as `key` spells them. What a table maps silently means the same; a *nearest* word means something else
that is modelled, and whoever reads it says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autodeploy.stack.memory_choices import RECOMPUTED, SWAPPED
from hardware_profiles.loader import list_profiles, load_profile
from hardware_profiles.schema import RecordNames
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


_WHOLE = re.compile(r"(\d{1,3}(?:,\d{3})+|\d{1,12})(k?)", re.ASCII | re.IGNORECASE)
_NOT_A_LETTER = re.compile(r"[^a-z0-9]+")


def key(text: object) -> str:
    """`flash_attn` of Flash-Attn, --flash-attn and " flash attn ": lower case, one underline between words."""
    return _NOT_A_LETTER.sub("_", str(text).lower()).strip("_")


def whole(value: object) -> object:
    """The whole number that a text says, 32K being 32,768; anything else as it is."""
    match = _WHOLE.fullmatch(value.strip()) if isinstance(value, str) else None
    return value if match is None else int(match[1].replace(",", "")) * (1024 if match[2] else 1)


_WORDS = shipped("autodeploy.specs", "record_words.yaml")


def _said(table: str) -> dict[str, str]:
    """The vocabulary's word by each of theirs."""
    return {word: name for name, words in _WORDS[table].items() for word in words}


PRECISIONS, NEAREST_PRECISIONS = _said("precisions"), _said("nearest_precisions")
ACTIVATIONS = _said("activations")
SCHEDULES, NEAREST_SCHEDULES = _said("schedules"), _said("nearest_schedules")
DISPATCHERS = _said("dispatchers")
CP_ALGOS, NEAREST_CP_ALGOS = _said("cp_algos"), _said("nearest_cp_algos")
RECOMPUTE_MODULES = {word: name for name, each in RECOMPUTED.items() for word in (name, *each.words)}
GRANULARITIES = _said("granularities")
SWAPS = {word: name for name, each in SWAPPED.items() for word in (name, *each.words)}
MODEL_FIELDS = _said("model_fields")
FEATURES = _said("features")
TIED_EMBEDDINGS = frozenset(map(tuple, _WORDS["tied_embeddings"]))
IDLE = frozenset(_WORDS["idle"])
SAID_BY_FIELDS = frozenset(_WORDS["said_by_fields"])


# Which profile and device a published run means.
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
