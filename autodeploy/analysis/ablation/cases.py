"""Reading the published effects: files of a folder, what they leave open laid under them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.published_effects import Case, Input
from autodeploy.specs.text_files import read_document

CASES = Path(__file__).resolve().parents[3] / "examples" / "published"
ASSUMPTIONS = "assumptions"  # a folder beside the cases: what the articles leave open, stated once for all of them


def read_cases(folder: Path = CASES) -> tuple[Case, ...]:
    """Every case of a folder, in the order of file names.

    Raises SpecError if there is none, or a file is not a case, with the file's name and the field's path.
    """
    files = sorted(folder.glob("*.yaml"))
    if not files:
        raise SpecError(Message("ablation.has_no_published_cases", folder=folder), hint="--cases FOLDER")
    return tuple(read_case(path) for path in files)


def read_case(path: Path) -> Case:
    """One case by its file. Raises SpecError as `read_cases`."""
    document = read_document(path)
    try:
        case = Case.model_validate(document)
        if case.assumes is not None:
            case = _over(case, read_document(path.parent / ASSUMPTIONS / f"{case.assumes}.yaml"))
    except ValidationError as error:
        raise SpecError(
            Message("ablation.is_not_case", file=path.name), errors=field_errors(error, prefix="", model=Case)
        ) from error
    if unsaid := _without_origin(case):
        raise SpecError(
            Message("ablation.input_without_origin", file=path.name, names=", ".join(unsaid)),
            path="inputs",
            hint="{source: TEXT} | {low: NUMBER, high: NUMBER}",
        )
    return case


def _over(case: Case, shared: dict[str, Any]) -> Case:
    """The case over what several of them assume."""
    inputs = {path: Input.model_validate(each) for path, each in shared.get("inputs", {}).items()}
    return case.model_copy(
        update={
            "inputs": inputs | case.inputs,
            "spec": laid_over(shared.get("spec", {}), case.spec),
            "features": case.features if case.own_features else (*shared.get("features", ()), *case.features),
            "strategy": laid_over(shared.get("strategy", {}), case.strategy),
        }
    )


def _without_origin(case: Case) -> list[str]:
    """Paths of values that a case states without saying where they are from; an entry also covers what is below it."""
    stated = [
        *_leaves("spec", case.spec),
        *_leaves("strategy", case.strategy),
        *(["features"] if case.features else []),
    ]
    for effect in case.effects:
        stated += [*_leaves("spec", effect.baseline.spec), *_leaves("spec", effect.variant.spec)]
    known = set(case.inputs)
    return [path for path in dict.fromkeys(stated) if not known & set(_above(path))]


def _leaves(path: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [leaf for name, each in value.items() for leaf in _leaves(f"{path}/{name}", each)]
    return [path]


def _above(path: str) -> list[str]:
    """A path and all above it."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def laid_over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key; everything else above replaces what is below."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = laid_over(merged[key], value) if both else value
    return merged
