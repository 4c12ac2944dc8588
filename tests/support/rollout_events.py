"""Generation and training by reinforcement, played through event by event: what the formulas are held against."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from cost_models.response_lengths import survival_of_normal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from cost_models.response_lengths import Lengths

    Floats = npt.NDArray[np.float64]
    TokenTime = Callable[[float, float], float]


def drawn(random: np.random.RandomState, lengths: Lengths, prompts: int, group_size: int, correlation: float) -> Floats:
    """Lengths of the responses of so many prompts, prompt by prompt."""
    shared, own = random.standard_normal((prompts, 1)), random.standard_normal((prompts, group_size))
    z = np.sqrt(correlation) * shared + np.sqrt(1.0 - correlation) * own
    place = np.searchsorted(np.cumsum(lengths.share), 1.0 - survival_of_normal(np.clip(z, -12.0, 12.0)))
    return np.asarray(lengths.tokens[np.minimum(place, len(lengths.tokens) - 1)]).ravel()


def unit_s(ranks: Sequence[Floats], slots: int, prompt: float, tpot_s: TokenTime) -> float:
    """Seconds of ranks that step together, each with its own queue, until the last response of all has ended."""
    queues = [list(reversed(rank.tolist())) for rank in ranks]
    running: list[list[tuple[float, float]]] = []
    for queue in queues:
        running.append([(queue.pop(), 0.0) for _ in range(min(slots, len(queue)))])
        heapq.heapify(running[-1])
    step, seconds = 0.0, 0.0
    while any(running):
        until = min(heap[0][0] for heap in running if heap)
        fullest = max(running, key=len)
        written = (step + until) / 2.0 - sum(start for _, start in fullest) / len(fullest)
        seconds += (until - step) * tpot_s(len(fullest), prompt + written)
        step = until
        for heap, queue in zip(running, queues, strict=True):
            while heap and heap[0][0] <= step + 1e-9:
                heapq.heappop(heap)
                if queue:
                    heapq.heappush(heap, (step + queue.pop(), step))
    return seconds


def slowest_unit_s(
    lengths: Lengths,
    prompt: float,
    tpot_s: TokenTime,
    shape: tuple[int, int, int, int],
    *,
    group_size: int = 1,
    correlation: float = 0.0,
    trials: int = 40,
) -> float:
    """Mean seconds of the slowest unit; shape: responses of a rank, slots, ranks of a unit, units."""
    responses, slots, ranks, units = shape
    random, found = np.random.RandomState(1), []
    for _ in range(trials):
        each = drawn(random, lengths, responses * ranks * units // group_size, group_size, correlation)
        dealt = each.reshape(units, ranks, responses)
        found.append(max(unit_s(list(unit), slots, prompt, tpot_s) for unit in dealt))
    return float(np.mean(found))


def mean_step_s(
    lengths: Lengths, tpot_s: TokenTime, responses: int, training_s: float, staleness: int, steps: int = 80
) -> float:
    """Mean seconds of a step where responses of step i start once i - staleness updates are done.

    One rank with a slot for every response; one trainer, which takes complete steps in their order.
    """
    random = np.random.RandomState(2)
    now, done, started = 0.0, 0, 0
    free_at, updates = 0.0, []  # of the trainer; when each update ends
    running: list[list[float]] = []  # tokens that are left and the step, by response
    left: dict[int, int] = {}
    position = 0.0
    complete: dict[int, float] = {}
    while done < steps:
        while started <= done + staleness:
            for length in drawn(random, lengths, responses, 1, 0.0):
                heapq.heappush(running, [position + length, started])
            left[started] = responses
            started += 1
        if not running:  # the trainer alone works
            now = max(now, updates[done])
            done += 1
            continue
        batch_s = tpot_s(len(running), 0.0)
        ends = now + (running[0][0] - position) * batch_s
        if len(updates) > done and updates[done] <= ends:
            position += (updates[done] - now) / batch_s if updates[done] > now else 0.0
            now = max(now, updates[done])
            done += 1
            continue
        position, now = running[0][0], ends
        step = int(heapq.heappop(running)[1])
        left[step] -= 1
        if not left[step]:
            complete[step] = now
        while len(updates) in complete:
            free_at = max(free_at, complete[len(updates)]) + training_s
            updates.append(free_at)
    return (updates[steps - 1] - updates[steps // 4]) / (steps - 1 - steps // 4)
