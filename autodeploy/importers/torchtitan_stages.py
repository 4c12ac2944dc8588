"""The pipeline of a launch of torchtitan: stages, schedule and the layers of each chunk."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import SpecError, UnsupportedError
from autodeploy.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.importers.key_reader import KeyReader

P: Final = "parallelism.pipeline_parallel_"
# Schedule -> ours, and the chunks of a stage where the file does not say them.
SCHEDULES: Final = {"1F1B": ("1f1b", 1), "Interleaved1F1B": ("interleaved", 2)}
# Models whose ModelSpec has a pipelining_fn (torchtitan v0.2.2 models/*/__init__.py).
WITHOUT_STAGES: Final = frozenset({"qwen3"})
_LAYER = re.compile(r"layers\.\d+")


def read_stages(reader: KeyReader, stages: int, layers: int) -> dict[str, Any]:
    """Fields of a strategy with `stages` stages.

    Raises
    ------
    SpecError
        where the file's stages can't hold the layers.
    UnsupportedError
        for schedules that are not modelled, and models without a pipeline.
    """
    if stages == 1:
        return {"pp": 1}
    model = str(reader.raw("model.name") or "")
    if model in WITHOUT_STAGES:
        message = Message("exporters.cannot_launch_axis", target=f"torchtitan {model}", axis="pp", value=stages)
        raise UnsupportedError(message, path=_pointer("degree"), hint="pipeline_parallel_degree=1")
    name = str(reader.take("/strategy/schedule", f"{P}schedule") or "1F1B")
    if name not in SCHEDULES:
        raise UnsupportedError(
            Message("common.is_not_modelled_yet", what=name[:40]),
            path=_pointer("schedule"),
            hint=" or ".join(SCHEDULES),
        )
    schedule, chunks = SCHEDULES[name]
    first, last = (
        reader.number("/strategy/layers_per_stage", f"{P}{end}_stage_less_layers") for end in ("first", "last")
    )
    ends = (1 if first is None else first, 1 if last is None else last)
    counts = _named(reader)
    if counts is None:
        each = reader.number("/strategy/layers_per_stage", f"{P}layers_per_stage", least=1)
        virtual = stages * chunks if each is None else -(-(layers + sum(ends)) // each)
        counts = spread(virtual, layers, ends)
    if len(counts) % stages or sum(counts) != layers or min(counts) < 0:
        raise SpecError(
            Message(
                "importers.parts_are_no_pipeline", parts=len(counts), held=sum(counts), stages=stages, layers=layers
            ),
            path=_pointer("layers_per_stage"),
        )
    vpp = len(counts) // stages
    if (vpp == 1) != (schedule == "1f1b"):
        raise SpecError(
            Message("importers.schedule_does_not_run_parts", name=name, count=vpp), path=_pointer("schedule")
        )
    placed = [[counts[chunk * stages + stage] for chunk in range(vpp)] for stage in range(stages)]
    return {"pp": stages, "vpp": vpp, "schedule": schedule, "layers_per_stage": placed}


def spread(parts: int, layers: int, ends: tuple[int, int]) -> list[int]:
    """Layers of each part: even, where the embedding counts as `ends[0]` layers and norm with head as `ends[1]`.

    Source: torchtitan v0.2.2, distributed/pipeline_parallel.py, generate_llm_fqn_per_model_part.
    """
    each, more = divmod(layers + sum(ends), parts)
    counts = [each + (part < more) for part in range(parts)]
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    return counts


def _named(reader: KeyReader) -> list[int] | None:
    """Layers of each part whose modules are named; None where the file names none."""
    given: Any = reader.take("/strategy/layers_per_stage", "parallelism.module_fqns_per_model_part")
    if not given:
        return None
    parts: Sequence[Any] = given if isinstance(given, list) else []
    return [sum(bool(_LAYER.fullmatch(str(each))) for each in part) for part in parts if isinstance(part, list)]


def _pointer(key: str) -> str:
    return f"/parallelism/pipeline_parallel_{key}"
