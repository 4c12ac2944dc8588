"""A document from the network becomes a spec, with every mistake named at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.errors import FieldError, SpecError
from autodeploy.importers.spec_file import read_spec_document

if TYPE_CHECKING:
    from autodeploy.jobs.planning import Planner
    from autodeploy.specs.spec import Spec

# Paths in a spec name files of whoever wrote it; over the network they would name files of the server.
FILE_FIELDS = (("training", "expert_load_file"),)


def read_network_spec(document: Any, planner: Planner) -> Spec:
    """The validated spec of a request's body.

    Raises
    ------
    SpecError
        with every bad field: JSON pointer, message and hint.
    """
    errors = list(_file_errors(document))
    try:
        spec = read_spec_document(document)
        planner.describe_hashes(spec)
    except SpecError as error:
        raise SpecError(errors=(*error.errors, *errors)) from error
    if errors:
        raise SpecError(errors=tuple(errors))
    return spec


def _file_errors(document: Any) -> list[FieldError]:
    found = []
    for section, key in FILE_FIELDS:
        values = document.get(section) if isinstance(document, Mapping) else None
        if isinstance(values, Mapping) and values.get(key) is not None:
            found.append(FieldError(f"/{section}/{key}", "a file can't be named here", "use the command line for it"))
    return found
