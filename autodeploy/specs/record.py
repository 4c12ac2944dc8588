"""A published or own measurement of a training run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from autodeploy.errors import SpecError
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import TrainingSpec
from autodeploy.specs.validation import field_errors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Measured(Document):
    """What was measured. Throughput per card; memory is the framework allocator's maximum."""

    tokens_per_s_per_npu: Annotated[float, Field(gt=0)] | None = None
    step_time_s: Annotated[float, Field(gt=0)] | None = None
    peak_memory_gib: Annotated[float, Field(gt=0)] | None = None


def _balanced(value: Any) -> Any:
    """Published runs state no imbalance: a record without one means balanced experts."""
    if isinstance(value, dict) and "routing_imbalance" not in value:
        return {**value, "routing_imbalance": 1.0, "routing_imbalance_peak": 1.0}
    return value


def _published_strategy(value: Any) -> Any:
    """Dispatchers of other stacks by their mechanism: flex and hybridep are deduplicating All-to-All."""
    if not isinstance(value, dict):
        return value
    value = dict(value)
    if value.get("moe_dispatcher") in {"hybridep", "flex", "deepep"}:
        value["moe_dispatcher"] = "alltoall"
        value["features"] = [*value.get("features", []), "deduplicated_dispatch"]
    return {k: v for k, v in value.items() if v is not None}


class Record(Document):
    """One run that somebody measured."""

    id: str
    source: str
    date: str | None = None
    confidence: str = "unknown"
    framework: str = "unknown"
    model: ModelSpec
    cluster: ClusterSpec
    training: Annotated[TrainingSpec, BeforeValidator(_balanced)]
    strategy: Annotated[Strategy, BeforeValidator(_published_strategy)]
    measured: Measured
    memory_regime: Literal["steady", "first_step"] | None = None
    short_run: bool | None = None
    notes: str = ""


def read_records(path: Path) -> Iterator[Record]:
    """Records of a JSON Lines file.

    Raises
    ------
    SpecError
        with the line number in the path of each bad field.
    """
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield Record.model_validate(json.loads(line))
        except json.JSONDecodeError as error:
            raise SpecError(f"line {number} is not JSON: {error.msg}", path=f"/{number}") from error
        except ValidationError as error:
            raise SpecError(errors=field_errors(error, prefix=f"/{number}")) from error
