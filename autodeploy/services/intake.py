"""A document from the network becomes a spec, with every mistake named at once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from autodeploy.errors import FieldError, SpecError
from autodeploy.importers.spec_file import read_spec_document
from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.validation import did_you_mean, field_errors
from hardware_profiles import ProfileError, list_profiles, load_profile, no_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.jobs.planning import Planner
    from autodeploy.specs.spec import Spec

Request = TypeVar("Request", bound=Document)
# Paths in a spec name files of whoever wrote it; over the network they would name files of the server.
FILE_FIELDS = (("training", "expert_load_file"),)
NO_FILE = Message("services.file_cannot_be_named_here")
NO_FILE_HINT = Message("services.command_line_reads_files")


def read_request(kind: type[Request], document: Any) -> Request:
    """The request in a body.

    Raises
    ------
    SpecError
        with every bad field.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, model=kind)) from error


def read_network_spec(document: Any, planner: Planner) -> Spec:
    """The validated spec of a request's body, which can be planned with.

    Raises
    ------
    SpecError
        with every bad field: JSON pointer, message and hint.
    """
    spec = read_spec(document)
    with placed_in_spec():
        if spec.training.rl is None:  # else whoever is asked says whether it can answer
            planner.prepare(spec)
    return spec


@contextmanager
def placed_in_spec() -> Iterator[None]:
    """What is wrong with a profile is said at its place in the spec."""
    try:
        yield
    except ProfileError as error:
        errors = tuple(FieldError("/cluster" + p.path, p.message, p.hint) for p in error.problems)
        raise SpecError(errors=errors) from error


def read_spec(document: Any) -> Spec:
    """The validated spec of a request's body; whether it can be planned with is another question.

    Raises
    ------
    SpecError
        with every bad field: JSON pointer, message and hint.
    """
    errors = [*_profile_errors(document), *_file_errors(document)]
    try:
        spec = read_spec_document(document)
        if not errors:
            return spec
    except SpecError as error:
        refused_paths = {e.path for e in errors}
        errors = [*(e for e in error.errors if e.path not in refused_paths), *errors]
    raise SpecError(errors=tuple(sorted(errors, key=lambda e: e.path)))


def refuse_files(spec: Spec) -> None:
    """A queued search may run on another machine, so it names no file of this one.

    Raises
    ------
    SpecError
        with the pointer of each field that names a file.
    """
    errors = [FieldError(f"/{s}/{k}", NO_FILE, NO_FILE_HINT) for s, k in FILE_FIELDS if getattr(getattr(spec, s), k)]
    if spec.cluster.profile not in list_profiles():
        errors.append(_unknown_profile(spec.cluster.profile))
    if errors:
        raise SpecError(errors=tuple(errors))


def _section(document: Any, name: str) -> Mapping[str, Any]:
    section = document.get(name) if isinstance(document, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _profile_errors(document: Any) -> list[FieldError]:
    """Only profiles that come with the product: any other name would be looked for among the server's files."""
    cluster = _section(document, "cluster")
    name, overrides = cluster.get("profile"), cluster.get("overrides")
    if not isinstance(name, str):
        return []
    if name not in list_profiles():
        return [_unknown_profile(name)]
    if isinstance(overrides, Mapping):
        try:
            load_profile(name, overrides)
        except ProfileError as error:
            return [FieldError("/cluster/overrides" + p.path, p.message, p.hint) for p in error.problems]
    return []


def refuse_profile(name: object) -> None:
    """Raises SpecError for the name of a profile that does not come with the product: it would be read as a path."""
    if isinstance(name, str) and name not in list_profiles():
        raise SpecError(errors=(_unknown_profile(name),))


def _unknown_profile(name: str) -> FieldError:
    return FieldError("/cluster/profile", no_profile(name), did_you_mean(name[:100], list_profiles()))


def _file_errors(document: Any) -> list[FieldError]:
    return [
        FieldError(f"/{section}/{key}", NO_FILE, NO_FILE_HINT)
        for section, key in FILE_FIELDS
        if _section(document, section).get(key) is not None
    ]
