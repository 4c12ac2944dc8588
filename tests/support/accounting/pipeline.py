"""Pipeline schedules, played one operation after the other.

1F1B warms up with P - p - 1 forwards, the interleaved schedule with 2 (P - p - 1) + (V - 1) P (Megatron-core
`get_pp_rank_microbatches`; all of them when there are no more micro batches than stages), Adaptive Pipe with one more,
and from then on it runs a forward and a backward as one (MindSpeed `vpp_schedules.py`). DualPipeV and DualPipe run the
steps of DeepSeek's `dualpipev.py` and `dualpipe.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

Half = tuple[int, int]  # micro batch, chunk
Slot = tuple[Half | None, Half | None]  # forward, backward


def part_of(schedule: str, stage: int, chunk: int, stages: int) -> int:
    """Which part of the model a chunk runs. DualPipe's second copy of the model has numbers of its own."""
    if schedule == "dualpipev":
        return stage if chunk == 0 else 2 * stages - 1 - stage
    if schedule == "dualpipe":
        return stage if chunk == 0 else 1000 + stages - 1 - stage
    return chunk * stages + stage


def dual_programme(schedule: str, stage: int, stages: int, micro_batches: int) -> tuple[list[Slot], set[int]]:
    """Slots, and the places of those whose weight gradients wait until the gradient has left."""
    near, half = stage, stages
    swapped = False
    if schedule == "dualpipe":
        half, micro_batches = stages // 2, micro_batches // 2
        swapped = stage >= half
        near = stages - 1 - stage if swapped else stage
    below = half - 1 - near
    done = {"f": [0, 0], "b": [0, 0]}
    slots: list[Slot] = []
    late: set[int] = set()

    def take(way: str, chunk: int) -> Half:
        done[way][chunk] += 1
        return done[way][chunk] - 1, 1 - chunk if swapped else chunk

    def run(forward: int | None, backward: int | None) -> None:
        slots.append(
            (
                None if forward is None else take("f", forward),
                None if backward is None else take("b", backward),
            )
        )

    for _ in range(2 * below):
        run(0, None)
    for _ in range(near + 1):
        run(0, None)
        run(1, None)
    for _ in range(below):
        late.add(len(slots))
        run(None, 1)
        run(1, None)
    for number in range(micro_batches - 2 * half + near + 1):
        if number == 0 and near == half - 1:
            run(0, None)
            run(None, 1)
        else:
            run(0, 1)
        run(1, 0)
    for _ in range(below):
        run(None, 1)
        run(1, 0)
    for _ in range(near + 1):
        run(None, 1)
        run(None, 0)
    for _ in range(below):
        run(None, 0)
    return slots, late


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


@dataclass(frozen=True)
class Sending:
    """Latency between stages, and weight gradients beside the sends of a pair [stage][f][b], of a split backward."""

    edge: float
    covering: list[list[list[float]]]
    split: list[list[float]]
    late: list[set[int]]  # of each stage, the slots that are split


def play(
    schedule: str,
    programmes: list[list[Slot]],
    forward: list[list[float]],
    backward: list[list[float]],
    hidden: list[list[list[float]]],
    sending: Sending,
) -> Played:
    """Run all stages: an operation starts when its stage is free and its input is there.

    forward, backward [stage][chunk]; hidden [stage][forward chunk][backward chunk].
    """
    stages, chunks = len(programmes), len(forward[0])
    here: dict[tuple[str, int, int], float] = {}  # direction, micro batch, part -> when its own stage has it
    there: dict[tuple[str, int, int], float] = {}  # and when another stage has
    home = {part_of(schedule, p, c, stages): p for p in range(stages) for c in range(chunks)}
    free = [0.0] * stages
    busy, idle, paired = [0.0] * stages, [0.0] * stages, [0.0] * stages
    turn = [0] * stages

    def arrival(direction: str, half: Half, stage: int) -> float | None:
        micro_batch, part = half[0], part_of(schedule, stage, half[1], stages)
        neighbour = part - 1 if direction == "f" else part + 1
        if neighbour not in home:
            return 0.0
        return (here if home[neighbour] == stage else there).get((direction, micro_batch, neighbour))

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
            after = sending.edge
            if f and b:
                length -= hidden[p][f[1]][b[1]]
                paired[p] += hidden[p][f[1]][b[1]]
                after = max(0.0, after - sending.covering[p][f[1]][b[1]])
            elif b and turn[p] in sending.late[p]:
                after -= sending.split[p][b[1]]
            idle[p] += start - free[p]
            busy[p] += length
            free[p] = start + length
            for way, half in (("f", f), ("b", b)):
                if half is not None:
                    key = way, half[0], part_of(schedule, p, half[1], stages)
                    here[key], there[key] = free[p], free[p] + after
            turn[p] += 1
            moved = True
        assert moved, "the schedule deadlocks"
    makespan = max(free)
    return Played(makespan, busy, [idle[p] + makespan - free[p] for p in range(stages)], paired)


def peak(slots: list[Slot], held: list[float]) -> float:
    """Most bytes a stage holds at once, `held` for each micro batch of each chunk; a pair hands over as it goes."""
    now = most = 0.0
    for f, b in slots:
        if f and b:
            now += held[f[1]] - held[b[1]]
            most = max(most, now)
            continue
        if f:
            now += held[f[1]]
        most = max(most, now)
        if b:
            now -= held[b[1]]
    return most
