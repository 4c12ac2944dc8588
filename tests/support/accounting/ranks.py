"""Who talks to whom: the process groups of a strategy, listed rank by rank."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Degrees:
    """How a run is cut. dp and the expert data-parallel degree follow from the world."""

    world: int
    tp: int = 1
    cp: int = 1
    ulysses: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    micro_batch_size: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    dispatcher: str = "alltoall"
    sequence_parallel: bool = False
    reuse_fp32: bool = False
    swap_optimizer: bool = False
    virtual_optimizer: bool = False
    keep_gathered: bool = False
    dp_replicate: int = 1
    replicas_outside: bool = False  # of the pipelines

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        return self.world // (self.tp * self.cp * self.pp)

    @property
    def edp(self) -> int:
        """Expert data-parallel ranks."""
        return self.world // (self.etp * self.ep * self.pp)


Sizes = tuple[tuple[str, int], ...]


@lru_cache(maxsize=64)
def coordinates(world: int, sizes: Sizes) -> list[dict[str, int]]:
    """Every rank's place on every axis, the first axis fastest."""
    places = []
    for rank in range(world):
        place, rest = {}, rank
        for axis, size in sizes:
            rest, place[axis] = divmod(rest, size)
        places.append(place)
    return places


@lru_cache(maxsize=1024)
def groups(world: int, sizes: Sizes, along: frozenset[str]) -> list[list[int]]:
    """Of every rank, all ranks that differ from it only along the given axes."""
    together: dict[tuple[int, ...], list[int]] = {}
    fixed = [tuple(n for axis, n in place.items() if axis not in along) for place in coordinates(world, sizes)]
    for rank, place in enumerate(fixed):
        together.setdefault(place, []).append(rank)
    return [together[place] for place in fixed]


def group(rank: int, world: int, sizes: Sizes, along: set[str]) -> list[int]:
    """All ranks that differ from `rank` only along the given axes."""
    return groups(world, sizes, frozenset(along))[rank]


def groups_of(rank: int, d: Degrees) -> dict[str, list[int]]:
    """Every group of one rank. Order of the axes, innermost first: tp, cp, dp, pp; for experts etp, ep, edp, pp. The
    last two change places where replicas lie outside the pipelines.

    Of a context-parallel group, neighbours exchange heads (Ulysses) and the rest pass keys and values round.
    """
    dense = (("tp", d.tp), ("heads", d.ulysses), ("ring", d.cp // d.ulysses), ("dp", d.dp), ("pp", d.pp))
    expert = (("etp", d.etp), ("ep", d.ep), ("edp", d.edp), ("pp", d.pp))
    if d.replicas_outside:
        dense, expert = ((*axes[:-2], axes[-1], axes[-2]) for axes in (dense, expert))
    found = {axis: group(rank, d.world, dense, {axis}) for axis in ("tp", "heads", "ring", "pp")}
    found["dense"] = group(rank, d.world, dense, {"heads", "ring", "dp"})
    found |= {axis: group(rank, d.world, expert, {axis}) for axis in ("etp", "ep", "edp")}
    found["experts"] = group(rank, d.world, expert, {"etp", "ep"})
    for axis in ("dense", "edp"):  # of HSDP the ranks that share one copy, and those that hold the same shard
        each = len(found[axis]) // d.dp_replicate
        found[f"{axis}_copies"], found[axis] = found[axis][::each], found[axis][:each]
    if d.schedule == "dualpipe":
        # The first and the last stage hold the same parameters and are farthest apart; all stages wait for them.
        places = coordinates(d.world, dense)
        ends = [stage_ranks(p, d) for p in (0, d.pp - 1)]
        for axis in ("dense", "edp"):
            mine = [{**places[member], "pp": 0} for member in found[axis]]
            found[axis] = sorted(rank for end in ends for rank in end if {**places[rank], "pp": 0} in mine)
    return found


def stage_ranks(stage: int, d: Degrees) -> list[int]:
    """The ranks of a stage of the pipeline."""
    outer = d.tp * d.cp if d.replicas_outside else d.world // d.pp
    return [rank for rank in range(d.world) if rank // outer % d.pp == stage]
