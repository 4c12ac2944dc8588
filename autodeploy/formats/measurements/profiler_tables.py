"""CSV tables of the Ascend profiler: long ones, read row by row, and the folder that it writes them to."""

from __future__ import annotations

import csv
import math
import re
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from autodeploy.formats.measurements.benchmark_tables import (
    MAX_COLUMNS,
    MAX_LINE_LENGTH,
    TableRow,
    bad_line,
    bad_value,
    lines_of,
    number,
    table_rows,
    within_documents,
)
from autodeploy.formats.measurements.benchmark_tables import MAX_TEXT_BYTES as MAX_STEP_TRACE
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.measured_run import GemmPoint, MeasuredRun, ProfilerTimes
from autodeploy.specs.text_files import at_line, load_json, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


MAX_TEXT_BYTES = 128_000_000
MAX_KERNELS = 600_000


def profiler_rows(text: str, required: tuple[str, ...]) -> Iterator[TableRow]:
    """Rows under the titles of the first line, which are in lower case; values may end with a tab.

    Raises SpecError with the line of what can't be read, or when a required title is missing.
    """
    titles: list[str] | None = None
    for line, content in enumerate(_lines(text), start=1):
        if not content.strip():
            continue
        if len(content) > MAX_LINE_LENGTH:
            raise bad_line(line, Message("field_fault.at_most_characters", bound=f"{MAX_LINE_LENGTH:,}"))
        if "\0" in content:
            raise bad_line(line, Message("field_fault.is_invalid", value=repr("\0")))
        try:
            cells = [cell.strip() for cell in next(csv.reader([content], strict=True))]
        except csv.Error as error:
            raise bad_line(line, Message("common.not_of_format", reason=error, format="CSV")) from None
        if titles is None:
            titles = [cell.lower() for cell in cells]
            if len(titles) > MAX_COLUMNS:
                raise bad_line(line, Message("field_fault.at_most_entries", bound=f"{MAX_COLUMNS:,}"))
            if repeated := [title for title in titles if titles.count(title) > 1]:
                raise bad_line(line, Message("common.given_twice", name=repr(repeated[0][:40])))
            for name in required:
                if name not in titles:
                    raise bad_line(
                        line,
                        Message("common.missing", word=repr(name)),
                        hint=Message("importers.output_of", command="torch_npu.profiler"),
                    )
            continue
        if len(cells) != len(titles):
            raise bad_line(line, Message("common.entries_expected", count=len(titles), found=len(cells)))
        if line > MAX_KERNELS:
            raise bad_line(
                line,
                Message("field_fault.at_most_entries", bound=f"{MAX_KERNELS:,}"),
                hint=Message("importers.few_profiled_steps"),
            )
        yield TableRow(line, dict(zip(titles, cells, strict=True)))
    if titles is None:
        raise SpecError(Message("field_fault.is_empty"))


def _lines(text: str) -> Iterator[str]:
    """Lines of a text without a second copy of it."""
    start = 1 if text.startswith("\ufeff") else 0
    while start <= len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield text[start:end].rstrip("\r")
        start = end + 1


# `ASCEND_PROFILER_OUTPUT/kernel_details.csv`.
OperatorClass: TypeAlias = Literal["gemm", "grouped_gemm", "attention", "vector", "fused_exchange", "exchange"]
S_PER_US = 1e-6
MAX_SIZE = 10**15
MAX_SHAPES = 64
KERNEL_TITLES = ("name", "duration(us)")
_SHAPE = re.compile(r"\d{1,12}(,\d{1,12}){0,15}")
_EXCHANGES = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all", re.IGNORECASE)
_BYTES = {"FLOAT": 4, "FP32": 4, "FLOAT16": 2, "FP16": 2, "DT_BF16": 2, "BF16": 2, "BFLOAT16": 2, "INT64": 8}
_BYTES |= {"INT32": 4, "INT8": 1, "UINT8": 1, "BOOL": 1, "DOUBLE": 8, "HIFLOAT8": 1, "FLOAT8_E4M3FN": 1}


@dataclass(slots=True)
class KernelGroup:
    """All kernels of one operator with the same shapes, over all profiled steps.

    `shape`: m, n, k of a matrix multiplication (rows summed over the groups of a grouped one), (0, 0, 0) where shapes
    don't say. `flops`, `bytes`: of one kernel; 0 where shapes don't say. Bytes are those of inputs and outputs.
    """

    operator_class: OperatorClass
    operator: str
    shapes: str
    shape: tuple[int, int, int]
    flops: float
    bytes: float
    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """Groups in the order of their time, longest first; `steps`: as many as the file tells apart, at least one."""

    groups: tuple[KernelGroup, ...]
    steps: int


def read_kernel_details(text: str) -> KernelTimes:
    """The time of a rank's kernels by operator and shape.

    Raises SpecError with the line of what can't be read.
    """
    groups: dict[tuple[str, ...], KernelGroup] = {}
    steps: set[str] = set()
    for row in profiler_rows(text, KERNEL_TITLES):
        cells = row.cells
        duration = number(cells["duration(us)"], row.line, "duration(us)")
        if duration < 0.0:
            raise bad_value(row.line, "duration(us)", "is_too_small", cells["duration(us)"][:40])
        steps.add(cells.get("step id") or cells.get("step_id") or "")
        kind = cells.get("type", "")
        operator = (cells["name"] if kind in {"", "N/A"} else kind)[:200]
        operator = operator.split("__")[0] if operator.startswith("hcom_") else operator
        inputs, outputs = cells.get("input shapes", ""), cells.get("output shapes", "")
        types = cells.get("input data types", ""), cells.get("output data types", "")
        key = operator, inputs, outputs, *types
        group = groups.get(key)
        if group is None:
            group = groups[key] = _group(row, operator)
        group.count += 1
        group.seconds += duration * S_PER_US
    if not groups:
        raise SpecError(
            Message("importers.no_measured_row"),
            hint=Message("importers.output_of", command="torch_npu.profiler"),
        )
    ordered = sorted(groups.values(), key=lambda each: (-each.seconds, each.operator, each.shapes))
    return KernelTimes(tuple(ordered), max(1, len(steps)))


def class_of(operator: str, core: str = "") -> OperatorClass:
    """Class of an operator, by the name of its type."""
    name = operator.lower()
    if name.startswith("hcom_") or core.upper() in {"HCCL", "COMMUNICATION"}:
        return "exchange"
    if "matmul" in name or "gemm" in name:
        if _EXCHANGES.search(name):
            return "fused_exchange"
        return "grouped_gemm" if "grouped" in name else "gemm"
    return "attention" if "attention" in name else "vector"


def _group(row: TableRow, operator: str) -> KernelGroup:
    operator_class = class_of(operator, row.cells.get("accelerator core", ""))
    inputs = _sizes(row, "input shapes")
    outputs = _sizes(row, "output shapes")
    shape, flops = (0, 0, 0), 0.0
    if len(inputs) >= 2 and outputs and min(len(inputs[0]), len(inputs[1]), len(outputs[0])) >= 2:
        nz = "NZ" in row.cells.get("input formats", "")
        if operator_class == "gemm" and not nz:
            shape, flops = _product(inputs[0], inputs[1], outputs[0])
        elif operator_class == "grouped_gemm" and not nz:
            columns, depth = outputs[0][-1], inputs[0][-1]
            rows = math.prod(inputs[0]) // max(1, depth)
            shape, flops = (rows, columns, depth), 2.0 * math.prod(inputs[0]) * columns
    moved = _moved(inputs, row.cells.get("input data types", "")) + _moved(
        outputs, row.cells.get("output data types", "")
    )
    shown = "; ".join("x".join(map(str, sizes)) for sizes in inputs[:3])
    return KernelGroup(operator_class, operator, shown, shape, flops, moved)


def _product(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]
) -> tuple[tuple[int, int, int], float]:
    """m, n, k of a product and its FLOPs, however its operands are transposed: |A| |B| |C| = (m n k)^2.

    A batch of products (a right side of three sizes and more) has the rows of all its products.
    """
    batch = math.prod(right[:-2]) if len(right) > 2 else 1
    columns = result[-1]
    rows = math.prod(result) // max(1, columns)
    depth = math.prod(left) // max(1, rows)
    if batch > 1 or rows * depth != math.prod(left) or depth * columns != math.prod(right):
        flops = 2.0 * math.sqrt(float(math.prod(left)) * math.prod(right) * math.prod(result) / max(1, batch))
        return (0, 0, 0), flops
    return (rows, columns, depth), 2.0 * rows * columns * depth


def _sizes(row: TableRow, column: str) -> list[tuple[int, ...]]:
    text = row.cells.get(column, "").replace('"', "").strip()
    if text in {"", "N/A"}:
        return []
    parts = [part.strip().strip("[]").replace(" ", "") for part in text.split(";")]
    if len(parts) > MAX_SHAPES:
        raise bad_line(row.line, Message("field_fault.at_most_entries", bound=f"{MAX_SHAPES:,}"))
    all_sizes = []
    for part in parts:
        if part and not _SHAPE.fullmatch(part):
            raise bad_value(row.line, column, "is_invalid", repr(part[:40]))
        sizes = tuple(int(size) for size in part.split(",")) if part else ()
        if math.prod(sizes) > MAX_SIZE:
            raise bad_value(row.line, column, "is_too_big", repr(part[:40]))
        all_sizes.append(sizes)
    return all_sizes


def _moved(sizes: list[tuple[int, ...]], types: str) -> float:
    """Bytes of tensors; 0 where a type is not known."""
    names = [name.strip().upper() for name in types.replace('"', "").split(";")]
    if len(names) != len(sizes):
        return 0.0
    return float(sum(math.prod(size) * _BYTES.get(name, 0) for size, name in zip(sizes, names, strict=True) if size))


# `ASCEND_PROFILER_OUTPUT/operator_memory.csv`.
ALLOCATED = "allocation total allocated"
RESERVED = "allocation total reserved"
GIB_OF = {"(mb)": 1.0 / 1024.0, "(kb)": 1.0 / 1024.0**2}
MAX_TENSORS = 10


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Highest totals of the allocator, and the largest requests: operator and GiB, one entry an operator."""

    allocated_gib: float
    reserved_gib: float
    largest: tuple[tuple[str, float], ...]


def read_operator_memory(text: str) -> MemoryTrace:
    """The peak of a rank's allocator.

    Raises SpecError with the line of what can't be read.
    """
    allocated = reserved = 0.0
    largest: dict[str, float] = {}
    for row in profiler_rows(text, ("name", "size(kb)")):
        unit = next((unit for unit in GIB_OF if ALLOCATED + unit in row.cells), None)
        if unit is None or RESERVED + unit not in row.cells:
            raise bad_line(
                1,
                Message("common.missing", word=repr(ALLOCATED + "(mb)")),
                hint=Message("importers.output_of", command="torch_npu.profiler"),
            )
        totals = []
        for column in (ALLOCATED + unit, RESERVED + unit):
            cell = row.cells[column]
            value = number(cell, row.line, column) if cell not in {"", "N/A"} else 0.0
            if value < 0.0:
                raise bad_value(row.line, column, "is_too_small", cell[:40])
            totals.append(value * GIB_OF[unit])
        allocated, reserved = max(allocated, totals[0]), max(reserved, totals[1])
        size = number(row.cells["size(kb)"], row.line, "size(kb)") * GIB_OF["(kb)"]
        name = row.cells["name"][:200]
        largest[name] = max(size, largest.get(name, 0.0))
    if allocated <= 0.0:
        raise SpecError(Message("importers.no_measured_row"), hint="profile_memory=True")
    ordered = sorted(largest.items(), key=lambda item: (-item[1], item[0]))
    return MemoryTrace(allocated, reserved, tuple(ordered[:MAX_TENSORS]))


# `ASCEND_PROFILER_OUTPUT/step_trace_time.csv` of the Ascend profiler.
COMPUTING = "computing"
EXPOSED = "communication(not overlapped)"
FREE = "free"
BUBBLE = "bubble"
STEP_TITLES = (COMPUTING, EXPOSED, FREE)
SHOWN = (*STEP_TITLES, "overlapped", "communication", "stage", BUBBLE, "preparing")


def is_step_trace(text: str) -> bool:
    """Whether the first line has the profiler's titles."""
    first = text.lstrip("\ufeff \r\n\t").partition("\n")[0].lower()
    return COMPUTING in first and EXPOSED in first


def read_step_trace(text: str) -> MeasuredRun:
    """Medians over the steps of the device that computes longest; several files may follow each other.

    A step takes computing + communication not overlapped + free. The pipeline's receives are inside the
    communication and are told apart as the bubble. A profiled step is slower than one that nobody watches.

    Raises SpecError with the line of what can't be read.
    """
    lines = [line if index == 0 or not is_step_trace(line) else "" for index, line in enumerate(lines_of(text))]
    rows = [row for row in table_rows(lines) if row.cells.get("type", "rank").strip() in {"rank", ""}]
    if not rows:
        raise SpecError(
            Message("importers.no_measured_row"), hint=Message("importers.output_of", command="torch_npu.profiler")
        )
    missing = [name for name in STEP_TITLES if name not in rows[0].cells]
    if missing:
        raise bad_line(
            1,
            Message("common.missing", word=repr(missing[0])),
            hint=Message("importers.output_of", command="torch_npu.profiler"),
        )
    devices: dict[str, list[dict[str, float]]] = {}
    for row in rows:
        name = (row.cells.get("device_id") or row.cells.get("index") or "0").strip()
        devices.setdefault(name[:64], []).append(_step(row))
    busiest = max(devices, key=lambda name: (_median(devices[name], COMPUTING), name))
    steps = devices[busiest]
    bubble = _median(steps, BUBBLE)
    times = ProfilerTimes(
        computing_s=_median(steps, COMPUTING) * S_PER_US,
        communication_s=max(0.0, _median(steps, EXPOSED) - bubble) * S_PER_US,
        bubble_s=min(bubble, _median(steps, EXPOSED)) * S_PER_US,
        free_s=_median(steps, FREE) * S_PER_US,
        overlapped_s=_median(steps, "overlapped") * S_PER_US,
        steps=len(steps),
        devices=len(devices),
    )
    if times.step_time_s <= 0.0:
        raise bad_line(rows[0].line, Message("field_fault.is_too_small", value=f"{times.step_time_s:g} s"))
    original = {name: _median(steps, name) for name in SHOWN if name in rows[0].cells}
    return MeasuredRun(
        source="profiler",
        step_time_s=times.step_time_s,
        iterations=len(steps),
        profiler=times,
        original={"device": busiest, "median_us": original},
    )


def _step(row: TableRow) -> dict[str, float]:
    times = {}
    for name in SHOWN:
        text = row.cells.get(name, "").strip()
        value = number(text, row.line, name) if text else 0.0
        if value < 0.0:
            raise bad_value(row.line, name, "is_too_small", text[:40])
        times[name] = value
    return times


def _median(steps: Sequence[dict[str, float]], name: str) -> float:
    return statistics.median([step[name] for step in steps])


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

    Raises SpecError with the line of what can't be read.
    """
    if len(text) > MAX_TEXT:
        raise SpecError(
            Message("field_fault.at_most_characters", bound=f"{MAX_TEXT:,}"),
            hint=Message("importers.few_profiled_steps"),
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
    """Profile of a rank; None where its file is missing. The step's memory is the allocator's peak."""

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

    Raises SpecError with file and line of what can't be read, or when no table is there.
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
