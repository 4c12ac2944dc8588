"""Which part of the model sits in which chunk of which device."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cost_models.schedule.orders import ScheduleKind

Places = tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def model_parts(kind: ScheduleKind, pp: int, vpp: int) -> tuple[Places, ...]:
    """Places (device, chunk) of every part of the model, first part first.

    1f1b, interleaved, adaptive_pipe: chunk c of device p runs part c P + p. dualpipev folds 2 P parts to a V: chunk 0
    of device p runs part p, chunk 1 part 2 P - 1 - p, so that the first and the last part meet on device 0. dualpipe
    runs P parts from both ends and keeps each twice: chunk 0 of device p runs part p, chunk 1 part P - 1 - p.

    References
    ----------
    github.com/deepseek-ai/DualPipe, `dualpipe.py`, `dualpipev.py`; Megatron-core `get_model_chunk_id`.
    """
    if kind == "dualpipev":
        return tuple(((p, 0),) for p in range(pp)) + tuple(((p, 1),) for p in reversed(range(pp)))
    if kind == "dualpipe":
        return tuple(((p, 0), (pp - 1 - p, 1)) for p in range(pp))
    return tuple(((p, c),) for c in range(vpp) for p in range(pp))


def parameter_copies(kind: ScheduleKind) -> int:
    """How many devices of a pipeline hold the same parameters: two under dualpipe, else one."""
    return 2 if kind == "dualpipe" else 1


def chunk_micro_batches(kind: ScheduleKind, micro_batches: int) -> int:
    """Micro batches that one chunk runs: half of them under dualpipe, where each direction takes its own."""
    return micro_batches // parameter_copies(kind)
