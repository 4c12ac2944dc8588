"""Profiles with some numbers changed: a user's overrides and a calibration overlay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autodeploy.kit.errors import FieldError
from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import MOST_HINTS
from hardware_profiles.errors import ProfileError
from hardware_profiles.older_names import renewed, renewed_value
from hardware_profiles.profile import Profile
from hardware_profiles.quantities import json_pointer, unknown_path_hint
from hardware_profiles.reading import parse_profile_document, problems_of, read_yaml_file
from hardware_profiles.schema import Quantity

USER_OVERRIDE = "user override"
OVERLAY = "calibration overlay"
COVARIANCE, EVIDENCE = "covariance", "evidence"
WHOLE = frozenset({COVARIANCE, EVIDENCE})
"""Sections of an overlay that take the place of the profile's as a whole."""
OVERLAY_REPORT_KEYS = frozenset({"profile", "report"})
"""Keys of an overlay that are not numbers: the profile it belongs to, and what it was fitted to and how well."""


def apply_overrides(profile: Profile, overrides: Mapping[str, float]) -> Profile:
    """The profile with these numbers, by dotted path, in the units of the profile.

    An overridden number has kind "assumed" and the source "user override". ProfileError names every path that does not
    exist or whose number is out of range.
    """
    problems: list[FieldError] = []
    changes: dict[str, Quantity] = {}
    for path, value in overrides.items():
        quantity = profile.quantities.get(renewed(path))
        if quantity is None:
            hint = unknown_path_hint(profile.quantities, path) if len(problems) < MOST_HINTS else ""
            problems.append(FieldError(json_pointer([path]), Message("profiles.unknown_number", name=repr(path)), hint))
        elif not _is_finite_number(value):
            problems.append(
                FieldError(
                    json_pointer([path]),
                    Message("field_fault.is_not_finite", value=repr(value)),
                    quantity.unit,
                )
            )
        else:
            changes[renewed(path)] = quantity.model_copy(
                update={
                    "value": renewed_value(path, float(value)),
                    "kind": "assumed",
                    "source": (USER_OVERRIDE,),
                    "note": "",
                    "measured_over": None,
                }
            )
    return _changed(profile, changes, problems, "overrides", lambda path: json_pointer([path]))


def behind_leaves(profile: Profile, nodes: int, oversubscription: float) -> Profile:
    """The profile with so many nodes below each leaf switch of its outermost tier.

    Parameters
    ----------
    oversubscription : bandwidth below a leaf switch over that of its uplinks, at least 1.

    Raises ProfileError where no tier spans the cluster, or a number is out of range.
    """
    content = profile.document.model_dump()
    outer = content["tiers"][-1]
    if outer["span"] != "cluster":
        raise ProfileError(
            Message("profiles.no_leaf_tier", name=outer["name"], span=outer["span"]),
            path="/leaf",
            hint=Message("profiles.leave_leaf_out"),
        )
    said = {"kind": "assumed", "source": (USER_OVERRIDE,)}
    outer["leaf_nodes"] = {"value": float(nodes), "unit": "nodes", **said}
    outer["leaf_oversubscription"] = {"value": float(oversubscription), "unit": "ratio", **said}
    return Profile(parse_profile_document(content))


def apply_overlay(profile: Profile, overlay: Mapping[str, Any] | str | Path) -> Profile:
    """The profile with a calibration overlay (a mapping, or the path of its YAML file) merged over it.

    An overlay has the shape of the profile: `{profile: <name>, efficiency: {hbm: 0.83, ...}, hccs: {efficiency: ...},
    release_factors: {...}, covariance: {...}, evidence: {...}, report: {...}}`; tiers stand under their names. A plain
    number keeps the profile's unit and has kind "fitted"; a mapping may give value, unit, kind, source, note and
    prior_sigma. A release band may be new. `covariance` takes the place of the profile's: how uncertain these numbers
    are together. `evidence` is what the cluster's runs have shown beyond these numbers.
    """
    document = overlay if isinstance(overlay, Mapping) else read_yaml_file(Path(overlay))
    wanted = document.get("profile")
    if wanted != profile.name:
        raise ProfileError(
            Message("profiles.other_profile", wanted=repr(wanted), name=repr(profile.name)),
            path="/profile",
            hint=Message("common.leave_it_out"),
        )
    problems: list[FieldError] = []
    changes: dict[str, Quantity] = {}
    numbers = {key: value for key, value in document.items() if key not in OVERLAY_REPORT_KEYS | WHOLE}
    for parts, value in _leaves(numbers, ()):
        path = ".".join(parts)
        try:
            changes[renewed(path)] = _overlaid(profile, parts, value)
        except ProfileError as error:
            problems.extend(error.problems)
        except ValidationError as error:
            problems.extend(problems_of(error, parts))
    return _changed(
        profile,
        changes,
        problems,
        "overlay",
        lambda path: json_pointer(path.split(".")),
        whole={key: document[key] for key in WHOLE if document.get(key) is not None},
    )


def _is_finite_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _leaves(node: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], object]]:
    """The numbers of an overlay: anything but a mapping, or a mapping with a `value`."""
    if isinstance(node, Mapping) and "value" not in node and len(path) < 8:
        for key, value in node.items():
            yield from _leaves(value, (*path, str(key)))
    else:
        yield path, node


def _overlaid(profile: Profile, parts: tuple[str, ...], value: object) -> Quantity:
    path = ".".join(parts)
    quantity = profile.quantities.get(renewed(path))
    if quantity is None and len(parts) == 2 and parts[0] == "release_factors":
        quantity = Quantity(value=1.0, unit="ratio", kind="fitted", source=(OVERLAY,))
    if quantity is None:
        hint = unknown_path_hint(profile.quantities, path)
        raise ProfileError(Message("profiles.unknown_number", name=repr(path)), path=json_pointer(parts), hint=hint)
    base = {"unit": quantity.unit, "kind": "fitted", "source": (OVERLAY,), "prior_sigma": quantity.prior_sigma}
    given = dict(value) if isinstance(value, Mapping) else {"value": value}
    overlaid = Quantity.model_validate({**base, **given})
    return overlaid.model_copy(update={"value": renewed_value(path, overlaid.value)})


def _changed(
    profile: Profile,
    changes: Mapping[str, Quantity],
    problems: list[FieldError],
    what: str,
    pointer_of: Callable[[str], str],
    whole: Mapping[str, object] | None = None,
) -> Profile:
    """A new profile with these quantities, validated as a whole; `pointer_of` a path is where the user wrote it."""
    if problems:
        raise _refused(what, problems)
    if not changes and not whole:
        return profile
    content = profile.document.model_dump()
    tiers = {tier["name"]: tier for tier in content["tiers"]}
    for path, quantity in changes.items():
        *parents, leaf = path.split(".")
        node = content
        for depth, key in enumerate(parents):
            node = tiers[key] if depth == 0 and key in tiers else node[key]
        node[leaf] = quantity.model_dump()
    content |= whole or {}
    try:
        return Profile(parse_profile_document(content))
    except ProfileError as error:
        written = {_pointer_in_document(path, list(tiers)): pointer_of(path) for path in changes}
        raise _refused(what, [_as_written(problem, written) for problem in error.problems]) from None


def _refused(what: str, problems: list[FieldError]) -> ProfileError:
    said = [Message("common.place", place=problem.path, message=problem.message) for problem in problems]
    text = Message("common.place", place=what, message=joined(said, "semicolon"))
    return ProfileError(text, problems=tuple(problems))


def _pointer_in_document(path: str, tier_names: list[str]) -> str:
    head, *rest = path.split(".")
    parts = ["tiers", tier_names.index(head), *rest] if head in tier_names else [head, *rest]
    return json_pointer(parts)


def _as_written(problem: FieldError, written: Mapping[str, str]) -> FieldError:
    """The problem with the pointer of the change that made it, where one of them did."""
    for document_pointer, pointer in written.items():
        if problem.path == document_pointer or problem.path.startswith(document_pointer + "/"):
            return replace(problem, path=pointer)
    return problem
