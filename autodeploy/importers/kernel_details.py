"""`ASCEND_PROFILER_OUTPUT/kernel_details.csv`: every kernel of a rank, here added up by operator and shape.

Titles as in CANN's "Timeline and Summary Data": Name, Type, Duration(us), and, where shapes were recorded, Input
Shapes, Input Data Types, Input Formats and the same of the outputs. Shapes of one operator stand in one cell, joined by
semicolons.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autodeploy.errors import SpecError
from autodeploy.importers.measured_text import TableRow, bad_line, number
from autodeploy.importers.profiler_table import profiler_rows
from autodeploy.messages import Message

OperatorClass: TypeAlias = Literal["gemm", "grouped_gemm", "attention", "vector", "fused_exchange", "exchange"]
S_PER_US = 1e-6
MAX_SIZE = 10**15
MAX_SHAPES = 64
REQUIRED = ("name", "duration(us)")
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

    Raises
    ------
    SpecError
        with the line of what can't be read.
    """
    groups: dict[tuple[str, ...], KernelGroup] = {}
    steps: set[str] = set()
    for row in profiler_rows(text, REQUIRED):
        cells = row.cells
        duration = number(cells["duration(us)"], row.line, "duration(us)")
        if duration < 0.0:
            raise bad_line(
                row.line,
                Message(
                    "common.place",
                    place="duration(us)",
                    message=Message("field_fault.is_too_small", value=cells["duration(us)"][:40]),
                ),
            )
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
    """What an operator does, by the name of its type."""
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
            raise bad_line(
                row.line,
                Message("common.place", place=column, message=Message("field_fault.is_invalid", value=repr(part[:40]))),
            )
        sizes = tuple(int(size) for size in part.split(",")) if part else ()
        if math.prod(sizes) > MAX_SIZE:
            raise bad_line(
                row.line,
                Message("common.place", place=column, message=Message("field_fault.is_too_big", value=repr(part[:40]))),
            )
        all_sizes.append(sizes)
    return all_sizes


def _moved(sizes: list[tuple[int, ...]], types: str) -> float:
    """Bytes of tensors; 0 where a type is not known."""
    names = [name.strip().upper() for name in types.replace('"', "").split(";")]
    if len(names) != len(sizes):
        return 0.0
    return float(sum(math.prod(size) * _BYTES.get(name, 0) for size, name in zip(sizes, names, strict=True) if size))
