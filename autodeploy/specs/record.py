"""A published or own measurement of a training run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.record_reading import ReadOtherwise, read_record
from autodeploy.specs.software import SoftwareField
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import TrainingSpec
from hardware_profiles.magnitudes import Gibibytes, Seconds, Share, Teraflops, TokensPerSecond

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_NAME = 200
MemoryCounts = Literal["allocated", "reserved", "card"]


def _absent(value: object) -> bool:
    return value is None


class Measured(Document):
    """What was measured. Throughput per card; memory of the fullest rank."""

    tokens_per_s_per_npu: TokensPerSecond | None = None
    step_time_s: Seconds | None = None
    peak_memory_gib: Gibibytes | None = None
    memory_counts: Annotated[
        MemoryCounts | None,
        Field(
            description="what peak_memory_gib counts: bytes in tensors, bytes reserved by the allocator, or all on the "
            "card as the driver shows it; absent: as the framework's own figures do",
            exclude_if=_absent,
        ),
    ] = None
    tflops_per_npu: Annotated[
        Teraflops | None, Field(description="model FLOPs with full attention, without recomputation")
    ] = None
    mfu: Annotated[Share | None, Field(le=2, description="of the cards' peak, FLOPs as tflops_per_npu")] = None


class Record(Document):
    """One run that somebody measured."""

    id: str
    source: str
    date: str | None = None
    confidence: str = "unknown"
    framework: str = "unknown"
    software: SoftwareField = None
    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    strategy: Strategy
    measured: Measured
    memory_regime: Literal["steady", "first_step"] | None = None
    short_run: bool | None = None
    notes: str = ""
    diagnoses: ReadOtherwise = ()

    @model_validator(mode="before")
    @classmethod
    def _in_our_words(cls, value: Any) -> Any:
        return read_record(value, cls.model_fields, Measured.model_fields)


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that is no record, with the errors of its fields."""

    name: str
    error: SpecError


def read_records(path: Path) -> Iterator[Record]:
    """Records of a JSON Lines file.

    Raises
    ------
    SpecError
        with the line number in the path of each bad field.
    """
    for record in read_lines(path):
        if isinstance(record, Unread):
            raise record.error
        yield record


def read_lines(path: Path) -> Iterator[Record | Unread]:
    """Every line of a JSON Lines file that isn't blank: a record, or why it is none."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            yield record_of(number, line)


def record_of(number: int, line: str) -> Record | Unread:
    """The measured run of training that a line is, or why it is none."""
    name = f"line {number}"
    try:
        value = json.loads(line)
        name = str(value["id"])[:MAX_NAME] if isinstance(value, dict) and value.get("id") else name
        return Record.model_validate(value)
    except json.JSONDecodeError as error:
        return Unread(
            name,
            SpecError(
                Message(
                    "common.line", line=number, message=Message("common.not_of_format", format="JSON", reason=error.msg)
                ),
                path=f"/{number}",
            ),
        )
    except ValidationError as error:
        return Unread(name, SpecError(errors=field_errors(error, prefix=f"/{number}")))
    except (RecursionError, ValueError) as error:
        return Unread(name, SpecError(Message("common.line", line=number, message=str(error)), path=f"/{number}"))
