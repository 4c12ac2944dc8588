"""Placement of parts of the model in chunks of devices."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from cost_models.schedule.kinds import Schedule, schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

Places = tuple[tuple[int, int], ...]


def model_parts(kind: str, pp: int, vpp: int) -> tuple[Places, ...]:
    """Places (device, chunk) of every part of the model, first part first.

    Chunk c of device p runs part c P + p. A folded pipeline (dualpipev) is a V of 2 P parts: chunk 0 of device p runs
    part p, chunk 1 part 2 P - 1 - p, so that the first and the last part meet on device 0. With two copies (dualpipe)
    P parts run from both ends and each is there twice: chunk 0 of device p runs part p, chunk 1 part P - 1 - p.

    References
    ----------
    github.com/deepseek-ai/DualPipe, `dualpipe.py`, `dualpipev.py`; Megatron-core `get_model_chunk_id`.
    """
    return parts_of(schedule(kind), pp, vpp)


@lru_cache(maxsize=256)
def parts_of(how: Schedule, pp: int, vpp: int) -> tuple[Places, ...]:
    """`model_parts` of a schedule."""
    if how.folded:
        return tuple(((p, 0),) for p in range(pp)) + tuple(((p, 1),) for p in reversed(range(pp)))
    if how.copies > 1:
        return tuple(((p, 0), (pp - 1 - p, 1)) for p in range(pp))
    return tuple(((p, c),) for c in range(vpp) for p in range(pp))


def parameter_copies(kind: str) -> int:
    """Number of devices of a pipeline that hold the same parameters: two where micro batches enter from both ends."""
    return schedule(kind).copies


def chunk_micro_batches(kind: str, micro_batches: int) -> int:
    """Micro batches that one chunk runs: half of them where each direction takes its own."""
    return micro_batches // schedule(kind).copies


def sizes_from(starts: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    """Layers of every part of the model nearest to `sizes` where a part begins with one of `starts` alone.

    Parameters
    ----------
    starts : layers (from 0, ascending) with which a part may begin, as many as parts at least [index].
    sizes : layers of every part, first part first [count].
    """
    begins, parts = [0], len(sizes)
    for part, end in enumerate(accumulate(sizes[:-1]), start=1):
        # So many of them have to be left for the parts that follow.
        left = [start for start in starts[: len(starts) - (parts - 1 - part)] if start > begins[-1]]
        begins.append(min(left, key=lambda start: abs(start - end)))
    return tuple(end - begin for begin, end in pairwise([*begins, sum(sizes)]))
