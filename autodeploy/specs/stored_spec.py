"""Documents as another version of the program stored them: read where this one knows all of them, else told as such."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from autodeploy.kit.errors import ConflictError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import SearchInfo

MOST_PLACES = 5


def spec_of(search: SearchInfo) -> Spec:
    """The spec of a stored search; errors as `written_by`."""
    return read_spec(search.spec, search.engine_version)


def read_spec(document: dict[str, Any], version: str) -> Spec:
    """The spec that this version of the program stored; errors as `written_by`."""
    with written_by(version):
        return Spec.model_validate(document)


@contextmanager
def written_by(version: str) -> Iterator[None]:
    """The block reads what that version stored.

    Raises
    ------
    ConflictError
        when it holds what this one does not know.
    """
    try:
        yield
    except ValidationError as error:
        places = sorted({"/" + "/".join(str(part) for part in item["loc"]) for item in error.errors()})
        raise ConflictError(
            Message(
                "jobs.this_version_cannot_read_what_is_stored",
                version=ENGINE_VERSION,
                written_by=version or "-",
                places=", ".join(places[:MOST_PLACES]),
            )
        ) from error
