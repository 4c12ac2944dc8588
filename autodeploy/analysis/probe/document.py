"""The file that a probe writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from autodeploy.kit.errors import SpecError
from autodeploy.specs.base import Document
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.text_files import load_json, read_text
from hardware_profiles import magnitudes

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES = 16 * 2**20
Seconds = Annotated[magnitudes.Seconds, Field(le=3600.0)]
Kind = Literal[
    "gemm", "grouped_gemm", "attention", "vector", "movement", "launch", "synchronisation", "host_link", "collective"
]


class Measurement(Document):
    """One measurement. `median`: seconds of one run, the median of the ranks' medians; `spread`: interquartile range
    against it; `price`: the numbers of the operator that the formulas read; `count`: runs in a step of the plans.
    """

    kind: Kind
    part: Annotated[str, Field(alias="pass", max_length=32)] = ""
    name: Annotated[str, Field(max_length=64)] = ""
    shape: dict[str, float | str] = {}
    price: dict[str, float | bool] = {}
    count: Annotated[float, Field(ge=0.0)] = 0.0
    unit: Literal["s"]
    repetitions: Annotated[int, Field(ge=1)]
    median: Seconds
    spread: Annotated[float, Field(ge=0.0)]
    slowest_rank: Seconds
    kernel: Annotated[str, Field(max_length=200)] = ""
    host_bound: bool = False

    def size(self, name: str) -> float:
        """A number of the shape."""
        return float(self.shape[name])


class ProbedDevice(Document):
    """Device of the measurements. `runtime_bytes`: memory beside tensors once work has begun."""

    kind: Literal["cpu", "cuda", "npu"]
    name: str
    memory_bytes: Annotated[float, Field(ge=0.0)]
    driver: str = ""
    threads: int = 0
    cores: int = 0
    asynchronous: bool
    runtime_bytes: Annotated[float, Field(ge=0.0)] = 0.0


class Request(Document):
    """Request of a probe."""

    spec_hash: str = ""
    model: str = ""
    profile: str = ""
    device: str = ""
    precision: Literal["bf16", "fp16", "fp32", "fp8"] = "bf16"
    dtype: str = ""
    plans: tuple[str, ...] = ()
    cut_groups: dict[str, str] = {}


class ProbeFile(Document):
    """All of it."""

    schema_version: Annotated[Literal["autodeploy-probe/1"], Field(alias="schema")]
    request: Request
    device: ProbedDevice
    versions: dict[str, str] = {}
    ranks: Annotated[int, Field(ge=1)]
    ranks_per_node: Annotated[int, Field(ge=1)]
    host: str = ""
    seconds: float = 0.0
    measurements: Annotated[tuple[Measurement, ...], Field(max_length=5000)]
    skipped: tuple[dict[str, Any], ...] = ()


def is_probe_text(start: str) -> bool:
    """Whether a file that begins so was written by a probe."""
    return '"schema":"autodeploy-probe/' in "".join(start[:200].split())


def read_probe_file(path: Path) -> ProbeFile:
    """The file, checked.

    Raises SpecError with every field that is not as it should be.
    """
    document = load_json(read_text(path, MAX_FILE_BYTES))
    try:
        return ProbeFile.model_validate(document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, model=ProbeFile)) from error
