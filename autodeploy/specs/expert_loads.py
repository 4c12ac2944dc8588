"""Loads of experts over time, as files of people give them: CSV, JSON, or the log of MindSpeed.

Accepted, by suffix:

- `.csv` with a header, one row an expert: `step,layer,expert,tokens`; or one row a layer: `step,layer` and then one
  column an expert.
- `.json`: {"loads": [rows][layers][experts], "steps": [rows]}, `steps` optional; or a list of
  {"step": 0, "layer": 3, "loads": [one number an expert]}.
- anything else is a log of `--print-expert-load`: lines `[expert load statistics] iter 10: rank 0 dp0 pp0, vpp0, tp0,
  ep0, model chunk 0, layer 3, device expert load: min .., max .., std .., details [..]`. They hold one number for each
  expert parallel rank, not for each expert; lines after an expert placement are left out.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.messages.field_faults import os_fault
from cost_models.load_balance import LoadSeries

if TYPE_CHECKING:
    from collections.abc import Iterable

FIELD = "/training/expert_load_file"
MAX_BYTES = 64_000_000
LOG_LINE = re.compile(
    r"\[expert load statistics(?P<when>[^\]]*)\] iter (?P<step>\d+): rank \d+ dp\d+ pp(?P<pp>\d+), vpp\w+, tp\d+, "
    r"ep\d+, model chunk (?P<chunk>\d+), layer (?P<layer>\d+), .*details \[(?P<loads>[\d, ]*)\]"
)

Key = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ExpertLoads:
    """A load series and what one of its columns is: an expert, or all experts of a rank that the log was printed on."""

    series: LoadSeries
    of_ranks: bool


def content_hash(path: Path) -> str:
    """SHA-256 of a file of expert loads."""
    return hashlib.sha256(_content(path)).hexdigest()


def read_expert_loads(name: str, sha256: str | None = None) -> ExpertLoads:
    """The expert loads in a file.

    Raises SpecError: under /training/expert_load_file: unreadable, not in one of the formats, incomplete, or changed
    since its hash was taken.
    """
    digest = content_hash(Path(name))
    if sha256 is not None and digest != sha256:
        raise SpecError(
            Message("specs.file_changed", file=Path(name).name),
            path=FIELD,
            hint=Message("common.try_again"),
        )
    return _read(name, digest)


@lru_cache(maxsize=8)
def _read(name: str, _sha256: str) -> ExpertLoads:
    path = Path(name)
    try:
        text = _content(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(Message("common.not_utf8", file=path.name, place=error.start), path=FIELD) from error
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return ExpertLoads(_series(_csv_rows(text)), of_ranks=False)
    if suffix == ".json":
        return ExpertLoads(_json_series(text), of_ranks=False)
    return ExpertLoads(_series(_log_rows(text)), of_ranks=True)


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise SpecError(
            Message("common.cannot_be_read", file=path.name, reason=os_fault(error)),
            path=FIELD,
            hint=Message("common.check_path"),
        ) from error
    if len(content) > MAX_BYTES:
        raise SpecError(
            Message("common.is_larger_than_bytes", file=path.name, limit=MAX_BYTES),
            path=FIELD,
            hint=Message("specs.keep_every_tenth_step"),
        )
    return content


def _csv_rows(text: str) -> dict[tuple[int, Key], list[float]]:
    try:
        lines = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise SpecError(Message("common.not_of_format", format="CSV", reason=error), path=FIELD) from error
    header = [name.strip().lower() for name in lines[0]] if lines else []
    if header[:2] != ["step", "layer"] or len(header) < 4:
        raise SpecError(Message("specs.loads_without_header"), path=FIELD, hint="step,layer,expert,tokens")
    long = header[2:] == ["expert", "tokens"]
    rows: dict[tuple[int, Key], dict[int, float]] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line:
            continue
        try:
            step, layer, *values = int(line[0]), int(line[1]), *map(float, line[2:])
            numbered = [(int(values[0]), values[1])] if long else list(enumerate(values))
        except (ValueError, IndexError, OverflowError):
            raise SpecError(
                Message(
                    "common.line",
                    line=number,
                    message=Message("field_fault.is_no_number", value=repr(",".join(line))[:40]),
                ),
                path=FIELD,
            ) from None
        if len(values) != len(header) - 2:
            raise SpecError(
                Message(
                    "common.line",
                    line=number,
                    message=Message("common.entries_expected", count=len(header), found=len(line)),
                ),
                path=FIELD,
            )
        row = rows.setdefault((step, (layer,)), {})
        for expert, tokens in numbered:
            if expert in row:
                twice = Message("common.given_twice", name=f"step,layer,expert {step},{layer},{expert}")
                raise SpecError(Message("common.line", line=number, message=twice), path=FIELD)
            row[expert] = tokens
    for (step, (layer, *_)), row in rows.items():
        if sorted(row) != list(range(len(row))):
            raise SpecError(
                Message("specs.expert_gaps", step=step, layer=layer),
                path=FIELD,
                hint=Message("specs.count_from_0"),
            )
    return {key: [row[expert] for expert in range(len(row))] for key, row in rows.items()}


def _json_series(text: str) -> LoadSeries:
    try:
        document: Any = json.loads(text)
        if isinstance(document, list):
            return _series({(int(r["step"]), (int(r["layer"]),)): list(map(float, r["loads"])) for r in document})
        loads = np.asarray(document["loads"], dtype=np.float64)
        steps = np.asarray(document.get("steps", range(len(loads))), dtype=np.int64)
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
        raise SpecError(
            Message("common.not_of_format", format="JSON", reason=str(error)[:200]),
            path=FIELD,
            hint='{"loads": [rows][layers][experts]} or [{"step", "layer", "loads"}]',
        ) from error
    if loads.ndim != 3 or steps.shape != loads.shape[:1]:
        raise SpecError(Message("specs.loads_shape"), path=FIELD)
    return _checked(steps, loads)


def _log_rows(text: str) -> dict[tuple[int, Key], list[float]]:
    """Lines of all data-parallel ranks together: layers in model order are (model chunk, pipeline stage, layer)."""
    rows: dict[tuple[int, Key], list[float]] = {}
    for match in LOG_LINE.finditer(text):
        if "after" in match["when"]:
            continue
        key = (int(match["step"]), tuple(int(match[name]) for name in ("chunk", "pp", "layer")))
        loads = [float(value) for value in match["loads"].split(",") if value.strip()]
        before = rows.get(key, [0.0] * len(loads))
        if len(before) != len(loads):
            raise SpecError(Message("specs.load_lines_differ", step=key[0]), path=FIELD)
        rows[key] = [a + b for a, b in zip(before, loads, strict=True)]
    if not rows:
        raise SpecError(Message("specs.no_loads_in_log"), path=FIELD, hint=Message("specs.loads_files"))
    return rows


def _series(rows: dict[tuple[int, Key], list[float]]) -> LoadSeries:
    steps, layers = _distinct(step for step, _ in rows), _distinct(layer for _, layer in rows)
    lengths = {len(loads) for loads in rows.values()}
    if not rows or len(rows) != len(steps) * len(layers) or len(lengths) != 1:
        raise SpecError(
            Message("specs.loads_incomplete"),
            path=FIELD,
            hint=Message("specs.steps_layers_rows", steps=len(steps), layers=len(layers), rows=len(rows)),
        )
    loads = np.array([[rows[step, layer] for layer in layers] for step in steps])
    return _checked(np.array(steps, dtype=np.int64), loads)


def _distinct(values: Iterable[Any]) -> list[Any]:
    return sorted(set(values))


def _checked(steps: np.ndarray, loads: np.ndarray) -> LoadSeries:
    if loads.size == 0 or not np.isfinite(loads).all() or (loads < 0.0).any():
        raise SpecError(Message("specs.loads_not_counts"), path=FIELD)
    if (loads.sum(axis=-1) <= 0.0).any():
        raise SpecError(Message("specs.idle_layer"), path=FIELD)
    if (np.diff(steps) <= 0).any():
        raise SpecError(Message("specs.steps_do_not_ascend"), path=FIELD)
    return LoadSeries(steps, loads)
