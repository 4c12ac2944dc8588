"""Load a hardware profile by the name of a shipped one or by the path of a user's own YAML."""

from __future__ import annotations

import re
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodeploy.messages import Message
from hardware_profiles.changes import apply_overlay, apply_overrides, behind_leaves
from hardware_profiles.errors import ProfileError
from hardware_profiles.profile import Profile
from hardware_profiles.reading import parse_profile_document, parse_yaml, read_text
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_DATA = files("hardware_profiles") / "data"


_REGISTERED: dict[str, Profile] = {}
_RECALIBRATED: dict[str, Profile] = {}


@cache
def shipped_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in _DATA.iterdir() if entry.name.endswith(".yaml")))


def list_profiles() -> tuple[str, ...]:
    """Names of the profiles that a spec may give without a path, sorted."""
    return tuple(sorted({*shipped_profiles(), *_REGISTERED})) if _REGISTERED else shipped_profiles()


@contextmanager
def registered(path: str | Path) -> Iterator[Profile]:
    """The profile of a YAML file, known by its name as the shipped ones are, while the context lasts.

    Raises ProfileError if the file is no profile, or its name is taken.
    """
    profile = _from_path(Path(path))
    if profile.name in list_profiles():
        raise ProfileError(Message("profiles.profile_exists", name=repr(profile.name)), path="/name")
    _REGISTERED[profile.name] = profile
    try:
        yield profile
    finally:
        del _REGISTERED[profile.name]


@contextmanager
def recalibrated(overlays: Mapping[str, Mapping[str, Any]]) -> Iterator[None]:
    """Shipped profiles with these calibrations, by name, in place of their own while the context lasts."""
    before = dict(_RECALIBRATED)
    _RECALIBRATED.update({name: apply_overlay(_shipped(name, False), overlay) for name, overlay in overlays.items()})
    try:
        yield
    finally:
        _RECALIBRATED.clear()
        _RECALIBRATED.update(before)


@cache
def _shipped(name: str, calibrated: bool) -> Profile:
    text = (_DATA / f"{name}.yaml").read_text(encoding="utf-8")
    profile = Profile(parse_profile_document(load_shipped_yaml(text), name=name))
    overlay = _DATA / "calibrated" / f"{name}.yaml"
    if calibrated and overlay.is_file():
        return apply_overlay(profile, load_shipped_yaml(overlay.read_text(encoding="utf-8")))
    return profile


def load_profile(
    name_or_path: str | Path,
    overrides: Mapping[str, float] | None = None,
    overlay: Mapping[str, Any] | str | Path | None = None,
    *,
    calibrated: bool = True,
    leaf: tuple[int, float] | None = None,
) -> Profile:
    """The named profile (cached) or the one in a YAML file, with the overlay and then the overrides applied.

    `leaf`: nodes below one leaf switch, and its oversubscription; in place of the profile's before anything is applied.

    A shipped profile comes with the efficiencies fitted to the shipped records; `calibrated=False` gives its priors.

    Text that ends in .yaml or .yml or contains a path separator is a path, anything else a name. ProfileError says
    what is wrong: an unknown name lists the known ones, a bad file every bad field with its JSON pointer.
    """
    profile = _from_path(Path(name_or_path)) if _is_path(name_or_path) else _named(str(name_or_path), calibrated)
    if leaf is not None:
        profile = behind_leaves(profile, *leaf)
    if overlay is not None:
        profile = apply_overlay(profile, overlay)
    return apply_overrides(profile, overrides) if overrides else profile


def profile_hash(profile: Profile) -> str:
    """sha256 (hexadecimal) of the profile's content, overlay and overrides included."""
    return profile.content_hash


def _is_path(name_or_path: str | Path) -> bool:
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith((".yaml", ".yml")) or "/" in text or "\\" in text


def no_profile(name: str) -> Message:
    """That no profile which comes with the product has that name."""
    return Message("common.there_is_no", what=Message("label.profile"), name=repr(name[:100]))


def nearest_profiles(name: str) -> list[str]:
    """Profiles that a name may mean, closest first: never another chip's, whose number is not in the name."""

    def numbered(text: str) -> list[str]:
        return [part for part in re.split(r"[^a-z0-9]+", text) if any(map(str.isdigit, part))]

    asked = numbered(name.lower()[:100])

    def squeezed(text: str) -> str:
        return re.sub(r"[^a-z0-9]", "", text.lower())

    def said(part: str, own: str) -> bool:
        swapped = sorted(part) == sorted(own)
        return swapped or (part.startswith(own) and part.removeprefix(own).isalpha())

    def means(each: str) -> bool:
        own = numbered(each)
        return squeezed(name) in squeezed(each) or all(any(said(part, of) for of in own) for part in asked)

    same = [each for each in list_profiles() if means(each)]
    return get_close_matches(name.lower(), same, n=3, cutoff=0.4) or (same if asked else [])


def _named(name: str, calibrated: bool) -> Profile:
    profiles = list_profiles()
    if name not in profiles:
        close = nearest_profiles(name)[:1]
        names = ", ".join(profiles)
        hint = Message("profiles.known_are_or_path", names=names)
        if close:
            hint = Message("profiles.did_you_mean", close=close[0], names=names)
        raise ProfileError(no_profile(name), hint=hint)
    if calibrated and name in _RECALIBRATED:
        return _RECALIBRATED[name]
    return _REGISTERED[name] if name in _REGISTERED else _shipped(name, calibrated)


def _from_path(path: Path) -> Profile:
    return _profile_of(read_text(path), str(path))


# One search loads its profile several times, and the text of a file takes a tenth of a second to parse.
@lru_cache(maxsize=8)
def _profile_of(text: str, name: str) -> Profile:
    return Profile(parse_profile_document(parse_yaml(text, name=name), name=name))
