"""Read a profile's YAML safely: bounded in size and depth, no aliases, every bad field named at once."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from hardware_profiles.errors import FieldProblem, ProfileError
from hardware_profiles.quantities import json_pointer, quantities
from hardware_profiles.schema import FIELDS_ERROR, ProfileDocument
from hardware_profiles.yaml_faults import fault_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_YAML_BYTES = 128 * 1024
"""A profile is about 10 KB; ten times that leaves room for notes."""

_MENDING = {
    "extra_forbidden": "remove it, or check its spelling against the documented fields",
    "missing": "add it",
}


def parse_yaml(text: str, *, name: str = "profile") -> dict[str, Any]:
    """The mapping that a YAML text holds; ProfileError with line and column when it is not one."""
    if len(text) > MAX_YAML_BYTES:
        raise ProfileError(f"{name} is larger than {MAX_YAML_BYTES // 1024} KiB", hint="a profile is about 10 KB")
    from hardware_profiles.bounded_yaml import YAMLError, load_bounded_yaml  # here: what is shipped needs none of it

    try:
        content = load_bounded_yaml(text)
    except (YAMLError, ValueError) as error:
        message = f"{name} is not valid YAML: {fault_of(error, text)}"
        raise ProfileError(message, hint="mend the syntax there") from None
    if not isinstance(content, dict):
        raise ProfileError(f"{name} does not hold a mapping", hint="start from one of the shipped profiles")
    return content


def read_yaml_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ProfileError when it cannot be read, is too large or is not one."""
    return parse_yaml(read_text(path), name=str(path))


def read_text(path: Path) -> str:
    """The text of a YAML file; ProfileError when it cannot be read. Of one that is too large, more than is parsed."""
    try:
        if not path.is_file():
            raise ProfileError(f"there is no file {path}", hint="give the path of a YAML file")
        with path.open("rb") as file:
            data = file.read(MAX_YAML_BYTES + 1)
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ProfileError(f"{path} is not UTF-8 text, or is too large", hint="a profile is a YAML text") from None
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}", hint="check the path and its rights") from None


def parse_profile_document(content: Any, *, name: str = "profile") -> ProfileDocument:
    """Validate a document; ProfileError lists every bad field with its JSON pointer."""
    try:
        document = ProfileDocument.model_validate(content)
    except ValidationError as error:
        raise _invalid(name, problems_of(error)) from None
    if problems := _unknown_sources(document):
        raise _invalid(name, problems)
    return document


def problems_of(error: ValidationError, prefix: Iterable[str] = ()) -> list[FieldProblem]:
    """Pydantic's findings as bad fields."""
    problems: list[FieldProblem] = []
    for finding in error.errors(include_url=False):
        if finding["type"] == FIELDS_ERROR:
            problems.extend(
                FieldProblem(json_pointer((*prefix, *finding["loc"], *found.location)), found.message, found.hint)
                for found in finding["ctx"]["findings"]
            )
            continue
        message = finding["msg"].removeprefix("Value error, ")
        hint = _MENDING.get(finding["type"], "give {value, unit, kind, source}" if "Quantity" in message else "")
        problems.append(FieldProblem(json_pointer((*prefix, *finding["loc"])), message, hint))
    return problems


def _unknown_sources(document: ProfileDocument) -> list[FieldProblem]:
    """A source of one word is a key of `sources`; a text of several words stands for itself."""
    problems = []
    for path, quantity in quantities(document).items():
        for source in quantity.source:
            if source not in document.sources and not any(mark.isspace() for mark in source):
                close = get_close_matches(source, document.sources, n=1)
                hint = f"did you mean {close[0]!r}?" if close else "add it to sources, or say it in several words"
                pointer = json_pointer([*path.split("."), "source"])
                problems.append(FieldProblem(pointer, f"source {source!r} is not among sources", hint))
    return problems


def _invalid(name: str, problems: list[FieldProblem]) -> ProfileError:
    shown = "; ".join(f"{problem.path or '/'}: {problem.message}" for problem in problems[:20])
    return ProfileError(f"{name} is not a valid profile: {shown}", problems=tuple(problems))
