"""A folder `ASCEND_PROFILER_OUTPUT` of one rank: its tables together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from autodeploy.errors import SpecError
from autodeploy.importers.communication_trace import MAX_TEXT, ExchangeTimes, read_communication
from autodeploy.importers.documents import read_text
from autodeploy.importers.kernel_details import KernelTimes, read_kernel_details
from autodeploy.importers.measured_text import MAX_TEXT_BYTES as MAX_STEP_TRACE
from autodeploy.importers.operator_memory import MemoryTrace, read_operator_memory
from autodeploy.importers.profiler_table import MAX_TEXT_BYTES
from autodeploy.importers.step_trace import read_step_trace
from autodeploy.messages import Message
from autodeploy.specs.measured_run import GemmPoint, MeasuredRun

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")
FOLDER = "ASCEND_PROFILER_OUTPUT"


@dataclass(frozen=True, slots=True)
class ProfilerOutput:
    """What a rank's profile says; None where its file is missing. The step's memory is the allocator's peak."""

    step: MeasuredRun | None
    kernels: KernelTimes | None
    exchanges: ExchangeTimes | None
    memory: MemoryTrace | None

    @property
    def products(self) -> MeasuredRun | None:
        """The matrix multiplications with known shapes, each with its mean time; None without any."""
        if self.kernels is None:
            return None
        seconds: dict[tuple[int, int, int], tuple[float, int]] = {}
        for group in self.kernels.groups:
            if group.operator_class == "gemm" and min(group.shape) > 0 and group.seconds > 0.0:
                total, count = seconds.get(group.shape, (0.0, 0))
                seconds[group.shape] = total + group.seconds, count + group.count
        points = [GemmPoint(m=m, n=n, k=k, seconds=s / count) for (m, n, k), (s, count) in seconds.items()]
        return MeasuredRun(source="gemm_benchmark", gemm=tuple(points[:10_000])) if points else None


def read_profiler_output(folder: Path) -> ProfilerOutput:
    """The tables of a rank's folder, which may be the one above it.

    Raises
    ------
    SpecError
        with file and line of what can't be read, or when no table is there.
    """
    if (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    step = _read(folder / "step_trace_time.csv", read_step_trace, MAX_STEP_TRACE)
    kernels = _read(folder / "kernel_details.csv", read_kernel_details, MAX_TEXT_BYTES)
    exchanges = _read(folder / "communication.json", read_communication, MAX_TEXT)
    memory = _read(folder / "operator_memory.csv", read_operator_memory, MAX_TEXT_BYTES)
    if step is None and kernels is None and exchanges is None and memory is None:
        hint = Message(
            "common.at_least_one_of",
            names="step_trace_time.csv, kernel_details.csv, communication.json, operator_memory.csv",
        )
        raise SpecError(Message("importers.no_measured_row"), path=folder.name, hint=hint)
    if step is not None and memory is not None:
        step = step.model_copy(update={"peak_memory_gib": memory.allocated_gib})
    return ProfilerOutput(step, kernels, exchanges, memory)


def _read(path: Path, read: Callable[[str], T], max_bytes: int) -> T | None:
    if not path.is_file():
        return None
    try:
        return read(read_text(path, max_bytes=max_bytes))
    except SpecError as error:
        path_in_file = error.errors[0].path if error.errors else ""
        said = (
            str(error)
            if str(error).startswith(path.name)
            else Message("common.place", place=path.name, message=str(error))
        )
        raise SpecError(said, path=path_in_file, hint=error.hint) from error
