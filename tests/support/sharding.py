"""The cut of one candidate, by its degrees."""

from __future__ import annotations

import numpy as np

from autodeploy.costs.workload.operators import Sharding


def shard(
    *,
    tp: int = 1,
    cp: int = 1,
    ulysses: int = 1,
    ep: int = 1,
    etp: int = 1,
    mbs: int = 1,
    seq: int = 4096,
    sp: bool = True,
    gathers: bool = False,
    once: bool = False,
) -> Sharding:
    """The cut of one candidate; sequence parallel where tp > 1 unless `sp` is off."""
    degrees = {"tp": tp, "cp": cp, "ulysses": ulysses, "ep": ep, "etp": etp, "micro_batch_size": mbs}
    arrays = {name: np.array([float(degree)]) for name, degree in degrees.items()}
    return Sharding(
        **arrays,
        sequence_parallel=np.array([sp and tp > 1]),
        gathers_tokens=np.array([gathers]),
        sends_once=np.array([once]),
        seq_length=float(seq),
    )
