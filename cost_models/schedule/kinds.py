"""Pipeline schedules as records: what a schedule is, as attributes; everything else asks those, never its name.

Symbols: P = pp pipeline devices, V = vpp chunks a device, M micro batches. Where the parts of the model are follows
from `folded` and `copies` (`placement`); which slots are fused from `pairs` and `extra_warm_up` (`orders`); what a
device holds at its peak, how long a pipeline takes and how many pairs it runs from all of them (`in_flight`,
`closed_forms`). A schedule with slots in another order brings an `order` of its own, and those are
read from its graph.

The registry's order is part of every result: candidates hold a schedule as its place in it. What a library user
registers comes after those that ship.

Parameters
----------
lang : language of the reports.
new : the `Schedule` to be registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, overload

import numpy as np

if TYPE_CHECKING:
    from cost_models.arrays import Ints

Rows = Callable[[int, int, int], "list[Ints]"]

MOST_CHUNKS: Final = 2**20
"""More chunks than any device has: no limit."""
MOST_EXTRA: Final = 2
"""Extra warm-up forwards for which the closed forms hold; with more, the way back is passed before it is awaited."""


def _any_number(pp: Any) -> Any:
    return np.ones_like(pp)


def _no_problem(pp: int, vpp: int, micro_batches: int) -> str | None:
    return None


@dataclass(frozen=True, eq=False, slots=True)
class Schedule:
    """A way to run a pipeline.

    Parameters
    ----------
    name : as strategies, rules and launch records say it.
    title, title_zh : as reports say it; without a Chinese one the same.
    least_chunks, most_chunks : chunks that a device of several has.
    one_stage : whether a single device with one chunk can run it too.
    ahead_per_stage : forwards that a device runs ahead for each device behind it: 1 where it has one chunk and forwards
        and backwards alternate (1F1B), 2 where chunks take turns (interleaving) [forwards].
    extra_warm_up : forwards in the warm-up beyond interleaving's 2 (P - p - 1) + (V - 1) N [forwards].
    gathers : with M <= P all forwards come before all backwards.
    blocking_sends : a send to the next device holds up the sender; otherwise it runs beside the next slot.
    pairs : steady slots run the forward of one micro batch beside the backward of another, as one.
    folded : two chunks a device, of which the second ones run back up: the model's ends meet on the first device.
    copies : devices that hold the same parameters: 2 where micro batches enter from both ends, a chunk for each way
        [devices].
    searched : False: evaluated for comparison, never worth a search.
    least_micro_batches : from which number on it is a plan, as a function of pp (a number or an array).
    order : the slots of every device of (pp, vpp, micro batches), a list of arrays [5, slots]: micro batch and chunk of
        the forward, of the backward (-1: none), and 1 where a lone backward sends before its weight gradients run.
        Absent, the order that the attributes say.
    problem : why its own order does not exist for (pp, vpp, micro batches), or None; chunks are checked before.
    other_chunks : the schedule that is the same with another number of chunks; "" where there is none.
    word : as rules say it, where the name is no identifier.
    """

    name: str
    title: str
    title_zh: str = ""
    least_chunks: int = 1
    most_chunks: int = MOST_CHUNKS
    one_stage: bool = False
    ahead_per_stage: int = 2
    extra_warm_up: int = 0
    gathers: bool = False
    blocking_sends: bool = False
    pairs: bool = False
    folded: bool = False
    copies: int = 1
    searched: bool = True
    least_micro_batches: Callable[[Any], Any] = _any_number
    order: Rows | None = None
    problem: Callable[[int, int, int], str | None] = _no_problem
    other_chunks: str = ""
    word: str = ""

    def __post_init__(self) -> None:
        if not (self.word or self.name).isidentifier():
            raise ValueError(f"a schedule's name, or its word, is an identifier, not {self.name!r}")
        if not 1 <= self.least_chunks <= self.most_chunks:
            raise ValueError(f"{self.name} has {self.least_chunks} to {self.most_chunks} chunks a device")
        if self.copies not in (1, 2) or (self.folded and self.copies > 1):
            raise ValueError(f"{self.name}: parts have one place or two, and a folded pipeline one")
        if self.copies > 1 and self.searched:
            raise ValueError(f"{self.name}: a pipeline that holds its parameters twice is estimated, not searched")
        if self.ends_meet and (self.least_chunks, self.most_chunks) != (2, 2):
            raise ValueError(f"{self.name} has two chunks a device: one for each way")
        if self.order is not None:
            return
        if self.ends_meet and not self.pairs:
            raise ValueError(f"{self.name}: the seven steps of DualPipe pair passes; give an order of its own")
        if self.ahead_per_stage == 1 and (self.most_chunks > 1 or self.pairs or self.gathers or self.extra_warm_up):
            raise ValueError(f"{self.name}: forwards and backwards of one chunk alternate and are nothing else")
        if self.ahead_per_stage not in (1, 2) or not 0 <= self.extra_warm_up <= MOST_EXTRA:
            raise ValueError(
                f"{self.name}: warm-ups of 1 or 2 forwards for each device behind, and at most {MOST_EXTRA} more; "
                "others are an order of their own"
            )
        if self.pairs and not self.ends_meet and not self.extra_warm_up:
            raise ValueError(f"{self.name}: without an extra warm-up forward a pair would wait for itself")

    @property
    def ends_meet(self) -> bool:
        """Whether the first device holds both ends of the model: its two chunks run towards each other."""
        return self.folded or self.copies > 1

    @property
    def own_order(self) -> bool:
        """Whether its slots are in an order of its own, so that all is read from its graph."""
        return self.order is not None

    @property
    def alternates(self) -> bool:
        """Whether devices run one chunk and one micro batch ahead of each other, as 1F1B does."""
        return self.ahead_per_stage == 1 and self.order is None

    @property
    def chunks(self) -> int | None:
        """Chunks of a device where there is no choice but one of several; None otherwise."""
        return self.least_chunks if self.least_chunks == self.most_chunks > 1 else None

    def title_in(self, lang: str) -> str:
        """The title in a language of the reports, "en" or "zh"."""
        return self.title_zh if lang == "zh" and self.title_zh else self.title

    def has_chunks(self, vpp: Any) -> Any:
        """Whether a pipeline of several devices may have so many chunks a device."""
        return (self.least_chunks <= vpp) & (vpp <= self.most_chunks)

    def exists_for(self, pp: Any, vpp: Any) -> Any:
        """Whether a strategy may have so many devices with so many chunks."""
        return np.where(np.asarray(pp) > 1, self.has_chunks(vpp), self.one_stage & (np.asarray(vpp) == 1))


_REGISTERED: Final[list[Schedule]] = [
    Schedule(
        "1f1b",
        title="1F1B",
        most_chunks=1,
        one_stage=True,
        ahead_per_stage=1,
        blocking_sends=True,
        other_chunks="interleaved",
        word="one_f_one_b",
    ),
    Schedule("interleaved", title="Interleaved 1F1B", least_chunks=2, gathers=True, other_chunks="1f1b"),
    Schedule(
        "dualpipev",
        title="DualPipeV",
        least_chunks=2,
        most_chunks=2,
        pairs=True,
        folded=True,
        least_micro_batches=lambda pp: 2 * pp - 1,
    ),
    Schedule(
        "dualpipe",
        title="DualPipe",
        least_chunks=2,
        most_chunks=2,
        pairs=True,
        copies=2,
        searched=False,
        least_micro_batches=lambda pp: 2 * pp,
    ),
    Schedule(
        "adaptive_pipe",
        title="Adaptive Pipe",
        least_chunks=2,
        one_stage=True,
        extra_warm_up=1,
        pairs=True,
        # Nothing is paired before the warm-up ends.
        least_micro_batches=lambda pp: np.where(np.asarray(pp) > 1, pp + 1, 1),
    ),
]


def schedules() -> tuple[Schedule, ...]:
    """All schedules, in the order of the registry."""
    return tuple(_REGISTERED)


def schedule(name: str) -> Schedule:
    """The schedule of that name.

    Raises
    ------
    ValueError : there is none; the message names those that there are.
    """
    for each in _REGISTERED:
        if each.name == name:
            return each
    raise ValueError(f"unknown schedule {name!r}; known: {', '.join(SCHEDULES)}")


def searched() -> tuple[Schedule, ...]:
    """Those that are worth a search: the ones without pairs first, then whole pipelines before folded ones."""
    return tuple(sorted((each for each in _REGISTERED if each.searched), key=lambda each: (each.pairs, each.folded)))


def plain(vpp: int) -> Schedule:
    """The usual schedule of so many chunks a device: the first that pairs nothing."""
    return next(each for each in _REGISTERED if not each.pairs and each.has_chunks(vpp))


@contextmanager
def registered(new: Schedule) -> Iterator[Schedule]:
    """One more schedule, for as long as the context lasts: strategies may name it, searches look at it.

    Raises
    ------
    ValueError : there is a schedule of that name.
    """
    if new.name in SCHEDULES:
        raise ValueError(f"there is a schedule {new.name!r}")
    _REGISTERED.append(new)
    try:
        yield new
    finally:
        _REGISTERED.remove(new)


class _Names(Sequence[str]):
    """Names of the registered schedules, in order."""

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(each.name for each in _REGISTERED[index])
        return _REGISTERED[index].name

    def __len__(self) -> int:
        return len(_REGISTERED)


SCHEDULES: Final[Sequence[str]] = _Names()
"""Names of the schedules, a view of the registry: candidates hold places in it."""
