"""A document from the network becomes a spec, with every mistake named at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autodeploy.errors import FieldError, SpecError
from autodeploy.importers.spec_file import read_spec_document
from hardware_profiles import ProfileError, list_profiles, load_profile

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
    errors = [*_profile_errors(document), *_file_errors(document)]
    try:
        spec = read_spec_document(document)
        if not errors:
            planner.describe_hashes(spec)
            return spec
    except SpecError as error:
        known = {e.path for e in errors}
        errors = [*(e for e in error.errors if e.path not in known), *errors]
    except ProfileError as error:
        errors = [FieldError("/cluster" + p.path, p.message, p.hint) for p in error.problems]
    raise SpecError(errors=tuple(sorted(errors, key=lambda e: e.path)))


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
        try:
            load_profile(name.replace("/", "-").replace("\\", "-").removesuffix(".yaml").removesuffix(".yml"))
        except ProfileError as error:
            hint = error.hint.partition("; or give")[0]
            return [FieldError("/cluster/profile", f"there is no hardware profile {name[:100]!r} here", hint)]
        return [FieldError("/cluster/profile", f"a file ({name[:100]}) can't be named here", "name a built-in profile")]
    if isinstance(overrides, Mapping):
        try:
            load_profile(name, overrides)
        except ProfileError as error:
            return [FieldError("/cluster/overrides" + p.path, p.message, p.hint) for p in error.problems]
    return []


def _file_errors(document: Any) -> list[FieldError]:
    return [
        FieldError(f"/{section}/{key}", "a file can't be named here", "use the command line for it")
        for section, key in FILE_FIELDS
        if _section(document, section).get(key) is not None
    ]
