"""Files of measurements: runs of training, of serving and of post-training, one JSON object a line, in any order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pydantic import ValidationError

from autodeploy.errors import SpecError
from autodeploy.specs.generation import GenerationRecord
from autodeploy.specs.record import MAX_NAME, Record, Unread, record_of
from autodeploy.specs.rl_record import RlRecord
from autodeploy.specs.validation import field_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GENERATION = "generation"


def read_measurements(path: Path) -> Iterator[Record | GenerationRecord | RlRecord | Unread]:
    """Every line of a JSON Lines file that isn't blank: a measurement of its kind, or why it is none."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield _other_kind(number, line) or record_of(number, line)


def generation_records(path: Path) -> list[GenerationRecord]:
    """Measurements of serving in a file; other kinds are left out.

    Raises
    ------
    SpecError
        with the line number in the path of each bad field.
    """
    return [each for each in _readable(path) if isinstance(each, GenerationRecord)]


def rl_records(path: Path) -> list[RlRecord]:
    """Measured steps of post-training in a file; as `generation_records`."""
    return [each for each in _readable(path) if isinstance(each, RlRecord)]


def _readable(path: Path) -> Iterator[Record | GenerationRecord | RlRecord]:
    for each in read_measurements(path):
        if isinstance(each, Unread):
            raise each.error
        yield each


def _other_kind(number: int, line: str) -> GenerationRecord | RlRecord | Unread | None:
    """The measurement of serving or of post-training that a line is, or why it is none; None for runs of training and
    for what is no JSON.
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    training = value.get("training")
    of_rl = isinstance(training, dict) and "rl" in training
    if value.get("kind") != GENERATION and not of_rl:
        return None
    try:
        return RlRecord.model_validate(value) if of_rl else GenerationRecord.model_validate(value)
    except ValidationError as error:
        name = str(value["id"])[:MAX_NAME] if value.get("id") else f"line {number}"
        return Unread(name, SpecError(errors=field_errors(error, prefix=f"/{number}")))
