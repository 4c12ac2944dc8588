"""What exports as sections of keys share: every key is one of the release's, and the comments at the head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.megatron.launch_script import mark, release_lines
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.artefact import provenance_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from autodeploy.formats.megatron.launch import Launch
    from autodeploy.specs.planset import PlanSet
    from autodeploy.stack.releases import Release


def refuse_unknown_keys(document: Mapping[str, Mapping[str, Any]], release: Release) -> None:
    """Refuses a document with a key that the release has not, or a value that the key does not take.

    Raises
    ------
    UnsupportedError
        with the first of them.
    """
    for path, values in _values(document):
        registered = release.keys.get(path)
        fault = Message("common.unknown_key", name=path) if registered is None else registered.fault(values)
        if fault is not None:
            raise UnsupportedError(
                Message("common.cannot_launch_this_plan", release=release.title, reason=fault), path="/to"
            )


def _values(document: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Every key by its path, with its values as the parser reads them."""
    for section, keys in document.items():
        for key, value in keys.items():
            listed = value if isinstance(value, list) else [value]
            yield f"{section}.{key}", [str(each) for each in listed]


def head_comments(plan_set: PlanSet, launch: Launch, start: Iterable[str], *, more_marks: str = "") -> list[str]:
    """Comments at the head of the file: the plan, what no key says, the release, `start` and the notes."""
    marks = [line.removeprefix("# ") + more_marks for line in mark(launch)]
    notes = [f"Note: {note}" for note in launch.arguments.notes]
    provenance = provenance_line(plan_set, launch.plan)
    return [provenance, *marks, *release_lines(launch.arguments.release), *start, *notes]
