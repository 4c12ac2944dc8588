"""Candidates as arrays: one entry per strategy, one array per axis."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np
import numpy.typing as npt

from autodeploy.specs.strategy import CpAlgo, Dispatcher
from cost_models.schedule import SCHEDULES, schedules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cost_models.arrays import Bools, Ints


CP_ALGOS: tuple[str, ...] = get_args(CpAlgo)
DISPATCHERS: tuple[str, ...] = get_args(Dispatcher)
HYBRID_DEGREES: tuple[int, ...] = (2, 4, 8)  # of the Ulysses part of hybrid context parallelism
CHOICES: Mapping[str, Sequence[str]] = {"schedule": SCHEDULES, "cp_algo": CP_ALGOS, "moe_dispatcher": DISPATCHERS}


def of_schedules(attribute: str, schedule: Ints) -> npt.NDArray[Any]:
    """An attribute of the schedules at places in the registry."""
    return np.array([getattr(each, attribute) for each in schedules()])[schedule]


def pairs(schedule: Ints) -> Bools:
    """Whether schedules run a forward against a backward pass."""
    return of_schedules("pairs", schedule)


@dataclass(frozen=True)
class Candidates:
    """n strategies. Categorical axes hold indices into SCHEDULES, CP_ALGOS and DISPATCHERS."""

    tp: Ints
    pp: Ints
    vpp: Ints
    cp: Ints
    cp_algo: Ints
    ulysses: Ints
    ep: Ints
    etp: Ints
    dp: Ints
    micro_batch_size: Ints
    micro_batches: Ints
    schedule: Ints
    moe_dispatcher: Ints
    sequence_parallel: Bools
    reuse_fp32_param: Bools
    swap_optimizer: Bools
    virtual_optimizer: Bools
    keep_gathered: Bools
    dp_replicate: Ints
    tp_pp_dp_mapping: Bools  # rank order tp-cp-ep-pp-dp in place of tp-cp-ep-dp-pp

    def __len__(self) -> int:
        return int(self.tp.shape[0])

    @property
    def paired(self) -> Bools:
        """Candidates that run a forward against a backward pass [n]."""
        return pairs(self.schedule)

    def take(self, index: Any) -> Candidates:
        """The candidates at an index, a slice or a mask."""
        return Candidates(**{name: getattr(self, name)[index] for name in AXES})

    def columns(self) -> dict[str, Any]:
        """Axes by name, for rules."""
        return {name: getattr(self, name) for name in AXES}

    def axes_at(self, index: int) -> dict[str, int | str | bool]:
        """Axes of one candidate with the names of its categorical choices."""
        row: dict[str, int | str | bool] = {}
        for name in AXES:
            value = getattr(self, name)[index].item()
            row[name] = CHOICES[name][value] if name in CHOICES else value
        return row


AXES: Final = tuple(field.name for field in fields(Candidates))


def concatenate(parts: list[Candidates]) -> Candidates:
    """All candidates of the parts, in order."""
    if len(parts) == 1:
        return parts[0]
    return Candidates(**{name: np.concatenate([getattr(p, name) for p in parts]) for name in AXES})
