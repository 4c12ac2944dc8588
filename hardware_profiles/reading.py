"""Read a profile's YAML safely: bounded in size and depth, no aliases, every bad field named at once."""

from __future__ import annotations

import os
from difflib import get_close_matches
from errno import ENOENT
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autodeploy.kit.errors import FieldError
from autodeploy.messages import Message, joined
from autodeploy.messages.field_faults import fault_of as field_fault_of
from autodeploy.messages.field_faults import limits_of, os_fault
from hardware_profiles.errors import ProfileError
from hardware_profiles.quantities import json_pointer, quantities
from hardware_profiles.schema import FIELDS_ERROR, ProfileDocument
from hardware_profiles.yaml_faults import fault_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_YAML_BYTES = 128 * 1024
"""A profile is about 10 KB; ten times that leaves room for notes."""

_MENDING = {
    "extra_forbidden": Message("common.leave_it_out"),
}


def parse_yaml(text: str, *, name: str = "profile") -> dict[str, Any]:
    """The mapping that a YAML text holds; ProfileError with line and column when it is not one."""
    if len(text) > MAX_YAML_BYTES:
        raise ProfileError(
            Message("common.is_larger_than_bytes", file=name, limit=MAX_YAML_BYTES),
            hint=Message("profiles.start_from_shipped"),
        )
    from hardware_profiles.bounded_yaml import YAMLError, load_bounded_yaml  # here: what is shipped needs none of it

    try:
        content = load_bounded_yaml(text)
    except (YAMLError, ValueError) as error:
        message = Message("common.not_of_format", format="YAML", reason=fault_of(error, text))
        raise ProfileError(Message("common.place", place=name, message=message)) from None
    if not isinstance(content, dict):
        raise ProfileError(
            Message("field_fault.is_no_mapping", value=name),
            hint=Message("profiles.start_from_shipped"),
        )
    return content


def read_yaml_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ProfileError when it cannot be read, is too large or is not one."""
    return parse_yaml(read_text(path), name=str(path))


def read_text(path: Path) -> str:
    """The text of a YAML file; ProfileError when it cannot be read. Of one that is too large, more than is parsed."""
    try:
        if not (path.is_file() or path.is_dir()):
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT))
        with path.open("rb") as file:
            data = file.read(MAX_YAML_BYTES + 1)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProfileError(Message("common.not_utf8", file=path, place=error.start)) from None
    except OSError as error:
        message = Message("common.cannot_be_read", file=path, reason=os_fault(error))
        raise ProfileError(message, hint=Message("common.check_path")) from None


def parse_profile_document(content: Any, *, name: str = "profile") -> ProfileDocument:
    """Validate a document; ProfileError lists every bad field with its JSON pointer."""
    try:
        document = ProfileDocument.model_validate(content)
    except ValidationError as error:
        raise _invalid(name, problems_of(error)) from None
    if problems := _unknown_sources(document):
        raise _invalid(name, problems)
    return document


def problems_of(error: ValidationError, prefix: Iterable[str] = ()) -> list[FieldError]:
    """Pydantic's findings as bad fields."""
    problems: list[FieldError] = []
    for finding in error.errors(include_url=False):
        if finding["type"] == FIELDS_ERROR:
            problems.extend(
                FieldError(json_pointer((*prefix, *finding["loc"], *inner.location)), inner.message, inner.hint)
                for inner in finding["ctx"]["findings"]
            )
            continue
        message, hint = field_fault_of(finding)
        if "Quantity" in finding["msg"]:
            hint = Message("profiles.number_format")
        hint = _MENDING.get(finding["type"], hint or limits_of(finding))
        problems.append(FieldError(json_pointer((*prefix, *finding["loc"])), message, hint))
    return problems


def _unknown_sources(document: ProfileDocument) -> list[FieldError]:
    """A source of one word is a key of `sources`; a text of several words stands for itself."""
    problems = []
    for path, quantity in quantities(document).items():
        for source in quantity.source:
            if source not in document.sources and not any(mark.isspace() for mark in source):
                close = get_close_matches(source, document.sources, n=1)
                hint = Message("common.did_you_mean", names=repr(close[0])) if close else Message("profiles.add_source")
                pointer = json_pointer([*path.split("."), "source"])
                problems.append(FieldError(pointer, Message("field_fault.is_invalid", value=repr(source)), hint))
    return problems


def _invalid(name: str, problems: list[FieldError]) -> ProfileError:
    said = (Message("common.place", place=problem.path or "/", message=problem.message) for problem in problems[:20])
    shown = joined(said, "semicolon")
    return ProfileError(Message("common.not_of_format", format=name, reason=shown), problems=tuple(problems))
