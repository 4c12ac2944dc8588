"""Reading the published effects: files of a folder, what they leave open laid under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.plan_details import Case
from autodeploy.specs.text_files import read_document

CASES = Path(__file__).resolve().parents[3] / "examples" / "published"
ASSUMPTIONS = "assumptions"  # a folder beside the cases: what the articles leave open, stated once for all of them


def read_cases(folder: Path = CASES) -> tuple[Case, ...]:
    """Every case of a folder, in the order of file names.

    Raises
    ------
    SpecError
        if there is none, or a file is not a case, with the file's name and the field's path.
    """
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise SpecError(Message("ablation.has_no_published_cases", folder=folder), hint="--cases FOLDER")
    return tuple(_read(path) for path in files)


def _read(path: Path) -> Case:
    document = read_document(path)
    try:
        case = Case.model_validate(document)
    except ValidationError as error:
        raise SpecError(
            Message("ablation.is_not_case", file=path.name), errors=field_errors(error, prefix="", model=Case)
        ) from error
    if case.assumes is None:
        return case
    shared = read_document(path.parent / ASSUMPTIONS / f"{case.assumes}.yaml")
    return case.model_copy(
        update={
            "spec": laid_over(shared.get("spec", {}), case.spec),
            "features": (*shared.get("features", ()), *case.features),
            "strategy": laid_over(shared.get("strategy", {}), case.strategy),
        }
    )


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key; everything else above replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = laid_over(merged[key], value) if both else value
    return merged
