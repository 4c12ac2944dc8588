"""One entry for every file that AutoDeploy understands: it looks at the content, then at the name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.formats.common.checkout import launch_text
from autodeploy.formats.common.source import Source
from autodeploy.formats.megatron.keyed_launch import with_experiment
from autodeploy.formats.registry import read
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.text_files import MAX_BYTES, refuse_long

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autodeploy.formats.common.import_result import ImportResult


def import_file(
    path: Path,
    *,
    variables: Mapping[str, str] | None = None,
    name: str | None = None,
    release: str | None = None,
    vendor: str | None = None,
) -> ImportResult:
    """The spec in a file; files that it names are looked for next to it. As `import_document` and `launch_text`."""
    launch = launch_text(path, release, vendor)
    if path.name == "config.json" and name is None:
        name = path.resolve().parent.name or None
    try:
        imported = import_document(launch.text, path.name, variables=variables, name=name, base_dir=path.parent)
        return imported.for_release(release, launch.doubt)
    except SpecError as error:
        if any(field.path for field in error.errors):
            raise
        raise type(error)(Message("common.place", place=path.name, message=str(error)), hint=error.hint) from error


def import_document(
    text: str,
    filename: str | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    name: str | None = None,
    base_dir: Path | None = None,
) -> ImportResult:
    """The spec in a text: an own spec or PlanSet, a Hugging Face config.json, a launch script or file.

    text : at most 1 MB, of a script or TOML 200,000 characters. The others : as of a `Source`.

    Raises SpecError with line and column, or with every bad field.
    """
    refuse_long(text, MAX_BYTES)
    source = Source(text, filename or "", variables, name, base_dir)
    imported = read(with_experiment(source) if source.suffix != ".py" else source)
    if imported is None:
        sections = "[model], [parallelism]" if source.syntax == "toml" else Message("importers.importable_files")
        raise SpecError(Message("importers.not_importable"), hint=sections)
    return imported
