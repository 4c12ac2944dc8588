"""Nearness to which the launches before a job's own bring its prediction, over clusters with hidden numbers.

python -m tests.benchmarks.commissioned 30 ["llama3.1-70b A2"] [--misfit]

--misfit: clusters of another form than the model.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np

from tests.support.commissioned_clusters import JOBS, commissioned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.commissioned_clusters import Commissioned

SEED = 20261129
NEAR = 0.06


def line(name: str, clusters: Sequence[Commissioned]) -> str:
    """Both sides of the launches: within 6 %, inside, median half width, mean and largest regret."""
    sides = []
    for side in ("_before", ""):
        error, inside, half, regret = (
            np.array([getattr(each, field + side) for each in clusters])
            for field in ("error", "inside", "half_width", "regret")
        )
        sides.append(
            f"within {NEAR:.0%}: {np.mean(np.abs(error) <= NEAR):.0%}, inside {np.mean(inside):.0%}, "
            f"+-{np.median(half):.1%}, regret mean {np.mean(regret):.2%} largest {np.max(regret):.1%}"
        )
    return f"{name} ({len(clusters)}): {sides[0]} -> {sides[1]}"


def main(count: int, names: Sequence[str], *, misfit: bool = False) -> None:
    """One line a job, and all of them together."""
    every: list[Commissioned] = []
    for number, name in enumerate(names):
        clusters = commissioned(name, count, SEED + number, misfit=misfit)
        every += clusters
        print(line(name, clusters), flush=True)
    print(line("all", every))


if __name__ == "__main__":
    wanted = [name for name in sys.argv[2:] if name != "--misfit"]
    main(int(sys.argv[1]), wanted or list(JOBS), misfit="--misfit" in sys.argv)
