"""A folder `ASCEND_PROFILER_OUTPUT` of one rank: its tables together."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from autodeploy.formats.measurements.measured_text import MAX_TEXT_BYTES as MAX_STEP_TRACE
from autodeploy.formats.measurements.measured_text import within_documents
from autodeploy.formats.measurements.profiler_tables import (
    MAX_TEXT_BYTES,
    KernelTimes,
    MemoryTrace,
    read_kernel_details,
    read_operator_memory,
    read_step_trace,
)
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.measured_run import GemmPoint, MeasuredRun
from autodeploy.specs.text_files import at_line, load_json, read_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# `ASCEND_PROFILER_OUTPUT/communication.json`.
MAX_TEXT = 64_000_000
MAX_VALUES = 3_000_000
S_PER_MS = 1e-3
BYTES_PER_MB = 1e6
TIMES = "Communication Time Info"
RATES = "Communication Bandwidth Info"
TOTAL = "Total Op Info"
_NAME = re.compile(r"hcom_([A-Za-z]+)_*.*?(?:@(.{1,200}))?")


@dataclass(slots=True)
class ExchangeGroup:
    """All exchanges of one operation, group and size, over all profiled steps.

    `transit_s`: data moves. `wait_s`: the rank waits for others. `sent_bytes`, `sent_s`: by link (HCCS, RDMA, SDMA,
    SIO, PCIE), where SDMA counts once more what HCCS, SIO and PCIE do. `message_bytes`: what one exchange moves over
    all links, two significant digits; `moved_bytes`: all of them.
    """

    operation: str
    group: str
    message_bytes: float
    count: int = 0
    elapsed_s: float = 0.0
    moved_bytes: float = 0.0
    transit_s: float = 0.0
    wait_s: float = 0.0
    sent_bytes: dict[str, float] = field(default_factory=dict)
    sent_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExchangeTimes:
    """Groups in the order of their time, longest first."""

    groups: tuple[ExchangeGroup, ...]
    steps: int


def read_communication(text: str) -> ExchangeTimes:
    """The time of a rank's exchanges by operation, group and size.

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    if len(text) > MAX_TEXT:
        raise SpecError(
            Message("field_fault.at_most_characters", bound=f"{MAX_TEXT:,}"),
            hint=Message("importers.profile_one_or_two_steps"),
        )
    try:
        return _read_groups(load_json(text, max_values=MAX_VALUES))
    except SpecError as error:
        raise at_line(text, error) from error


def _read_groups(document: Any) -> ExchangeTimes:
    groups: dict[tuple[str, str, float], ExchangeGroup] = {}
    steps = _mapping(document, "")
    for step, kinds in steps.items():
        for kind, exchanges in _mapping(kinds, _below("", step)).items():
            path = _below(_below("", step), kind)
            for name, exchange in _mapping(exchanges, path).items():
                if name != TOTAL:
                    _add(groups, name, _mapping(exchange, _below(path, name)), _below(path, name))
    if not groups:
        raise SpecError(
            Message("importers.no_measured_row"), hint=Message("importers.output_of", command="torch_npu.profiler")
        )
    ordered = sorted(groups.values(), key=lambda each: (-each.elapsed_s, each.operation, each.group))
    return ExchangeTimes(tuple(ordered), max(1, len(steps)))


def _add(groups: dict[tuple[str, str, float], ExchangeGroup], name: str, exchange: dict[str, Any], path: str) -> None:
    named = _NAME.fullmatch(name[:1000])
    operation, group_name = (named[1], named[2] or "") if named else (name.partition("@")[0][:100], "")
    times, place = _mapping(exchange.get(TIMES), _below(path, TIMES)), _below(path, TIMES)
    elapsed, transit, wait = (
        _amount(times, f"{what} Time(ms)", place) * S_PER_MS for what in ("Elapse", "Transit", "Wait")
    )
    sent: dict[str, tuple[float, float]] = {}
    for link, rate in _mapping(exchange.get(RATES, {}), _below(path, RATES)).items():
        below = _below(_below(path, RATES), link)
        size = _amount(_mapping(rate, below), "Transit Size(MB)", below) * BYTES_PER_MB
        seconds = _amount(rate, "Transit Time(ms)", below) * S_PER_MS
        if size > 0.0 and seconds > 0.0:
            sent[link[:40]] = size, seconds
    apart = sum(size for link, (size, _) in sent.items() if link not in {"RDMA", "SDMA"})
    total = max(apart, sent.get("SDMA", (0.0, 0.0))[0]) + sent.get("RDMA", (0.0, 0.0))[0]
    message = float(f"{total:.1e}")
    group = groups.setdefault((operation, group_name, message), ExchangeGroup(operation, group_name, message))
    group.count += 1
    group.elapsed_s += elapsed
    group.moved_bytes += total
    group.transit_s += transit
    group.wait_s += wait
    for link, (size, seconds) in sent.items():
        group.sent_bytes[link] = group.sent_bytes.get(link, 0.0) + size
        group.sent_s[link] = group.sent_s.get(link, 0.0) + seconds


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _mapping(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SpecError(Message("importers.not_json_object"), path=path)
    return value


def _amount(values: dict[str, Any], name: str, path: str) -> float:
    value = values.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value <= 1e15:
        fault = Message("common.is_outside", value=repr(value)[:40], range="[0, 1e15]")
        raise SpecError(Message("common.place", place=name, message=fault), path=_below(path, name))
    return float(value)


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
    @within_documents()
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


@within_documents()
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
