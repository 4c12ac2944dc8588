"""Pipeline schedules, played one operation after the other.

1F1B warms up with P - p - 1 forwards, the interleaved schedule with 2 (P - p - 1) + (V - 1) P (Megatron-core
`get_pp_rank_microbatches`; all of them when there are no more micro batches than stages), Adaptive Pipe with one more,
and from then on it runs a forward and a backward as one (MindSpeed `vpp_schedules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

Half = tuple[int, int]  # micro batch, chunk
Slot = tuple[Half | None, Half | None]  # forward, backward


def programme(schedule: str, stage: int, stages: int, chunks: int, micro_batches: int) -> list[Slot]:
    """What a stage runs, in order."""
    forwards: list[Half] = []
    backwards: list[Half] = []
    rounds = [list(range(first, min(first + stages, micro_batches))) for first in range(0, micro_batches, stages)]
    for members in rounds if chunks > 1 else [list(range(micro_batches))]:
        forwards += [(m, c) for c in range(chunks) for m in members]
        backwards += [(m, c) for c in reversed(range(chunks)) for m in members]
    warm_up = stages - stage - 1 if schedule == "1f1b" else 2 * (stages - stage - 1) + (chunks - 1) * stages
    if schedule == "interleaved" and micro_batches <= stages:
        warm_up = len(forwards)
    if schedule == "adaptive_pipe":
        warm_up += 1
    warm_up = min(warm_up, len(forwards))
    slots: list[Slot] = [(f, None) for f in forwards[:warm_up]]
    for number in range(warm_up, len(forwards)):
        pair = (forwards[number], backwards[number - warm_up])
        slots += [pair] if schedule == "adaptive_pipe" else [(pair[0], None), (None, pair[1])]
    return slots + [(None, b) for b in backwards[len(forwards) - warm_up :]]


@dataclass
class Played:
    """What happened: end of the last operation, and per stage time at work, waiting, and saved by pairing."""

    makespan: float
    busy: list[float]
    idle: list[float]
    paired: list[float]


def play(
    programmes: list[list[Slot]],
    forward: list[list[float]],
    backward: list[list[float]],
    hidden: list[list[list[float]]],
    edge: float,
) -> Played:
    """Run all stages: an operation starts when its stage is free and its input is there.

    forward, backward [stage][chunk]; hidden [stage][forward chunk][backward chunk]; edge: latency between stages.
    Chunk c of stage p is part c P + p of the model.
    """
    stages, chunks = len(programmes), len(forward[0])
    done: dict[tuple[str, int, int], float] = {}  # direction, micro batch, part -> when it left its stage
    free = [0.0] * stages
    busy, idle, paired = [0.0] * stages, [0.0] * stages, [0.0] * stages
    turn = [0] * stages
    last_part = stages * chunks - 1

    def arrival(direction: str, half: Half, stage: int) -> float | None:
        micro_batch, part = half[0], half[1] * stages + stage
        neighbour = part - 1 if direction == "f" else part + 1
        if not 0 <= neighbour <= last_part:
            return 0.0
        left = done.get((direction, micro_batch, neighbour))
        if left is None:
            return None
        return left if neighbour % stages == stage else left + edge

    while any(turn[p] < len(programmes[p]) for p in range(stages)):
        moved = False
        for p in range(stages):
            if turn[p] == len(programmes[p]):
                continue
            f, b = programmes[p][turn[p]]
            ready = [arrival(way, half, p) for way, half in (("f", f), ("b", b)) if half is not None]
            if any(moment is None for moment in ready):
                continue
            start = max([free[p], *(moment for moment in ready if moment is not None)])
            length = (forward[p][f[1]] if f else 0.0) + (backward[p][b[1]] if b else 0.0)
            if f and b:
                length -= hidden[p][f[1]][b[1]]
                paired[p] += hidden[p][f[1]][b[1]]
            idle[p] += start - free[p]
            busy[p] += length
            free[p] = start + length
            for way, half in (("f", f), ("b", b)):
                if half is not None:
                    done[way, half[0], half[1] * stages + p] = free[p]
            turn[p] += 1
            moved = True
        assert moved, "the schedule deadlocks"
    makespan = max(free)
    return Played(makespan, busy, [idle[p] + makespan - free[p] for p in range(stages)], paired)


def peak(slots: list[Slot], held: list[float]) -> float:
    """Most bytes a stage holds at once, `held` for each micro batch of each chunk."""
    now = most = 0.0
    for f, b in slots:
        if f:
            now += held[f[1]]
        most = max(most, now)
        if b:
            now -= held[b[1]]
    return most
