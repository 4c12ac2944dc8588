"""What rules may read of a schedule beside its name: its attributes, as columns that follow from axes of candidates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autodeploy.space.candidates import of_schedules
from cost_models.schedule import schedules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LAUNCHED: Final = "launched_schedules"
"""The fact that says which schedules a release launches."""

_ATTRIBUTES: Final = {
    "paired": "pairs",
    "folded": "folded",
    "copies": "copies",
    "least_chunks": "least_chunks",
    "most_chunks": "most_chunks",
    "one_stage": "one_stage",
}


def _least_micro_batches(schedule: Any, pp: Any) -> Any:
    schedule, pp = np.broadcast_arrays(schedule, pp)
    least = np.ones(schedule.shape, dtype=np.int64)
    for place, each in enumerate(schedules()):
        of_schedule = schedule == place
        if of_schedule.any():
            least = np.where(of_schedule, each.least_micro_batches(pp), least)
    return least


def _launched(schedule: Any, names: frozenset[str] | None) -> Any:
    return np.array([names is None or each.name in names for each in schedules()])[schedule]


# Name of each column -> the axes, or the fact, that it follows from, and how.
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Any]]]] = {
    **{
        name: (("schedule",), lambda schedule, attribute=attribute: of_schedules(attribute, schedule))
        for name, attribute in _ATTRIBUTES.items()
    },
    "least_micro_batches": (("schedule", "pp"), _least_micro_batches),
    "launched": (("schedule", LAUNCHED), _launched),
}
COLUMNS: Final = frozenset(_COLUMNS)


def axes_behind(names: Iterable[str]) -> frozenset[str]:
    """The names with the axes that columns of schedules follow from in the columns' place."""
    read: set[str] = set()
    for name in names:
        read |= set(_COLUMNS[name][0]) if name in _COLUMNS else {name}
    return frozenset(read)


def with_columns(values: Mapping[str, Any], names: Iterable[str]) -> Mapping[str, Any]:
    """The values with those columns of schedules that are named and not there yet."""
    wanted = [name for name in names if name in _COLUMNS and name not in values]
    if not wanted:
        return values
    columns = dict(values)
    for name in wanted:
        axes, column = _COLUMNS[name]
        columns[name] = column(*(values[axis] for axis in axes))
    return columns


class Words(Mapping[str, int]):
    """Names of choices as rules write them, with their places: the schedules that are registered, and others."""

    def __init__(self, others: Mapping[str, int]) -> None:
        self._others = others

    def __getitem__(self, word: str) -> int:
        return self.places()[word]

    def places(self) -> dict[str, int]:
        """All of them, read from the registry once."""
        return {**self._others, **{each.word or each.name: place for place, each in enumerate(schedules())}}

    def __iter__(self) -> Iterator[str]:
        return iter((*(each.word or each.name for each in schedules()), *self._others))

    def __len__(self) -> int:
        return len(schedules()) + len(self._others)
