"""Where ranks of pipelines and replicas lie: tp, cp, dp, pp inside out, or tp, cp, pp, dp where the strategy says so.

Groups of tensor, context and expert parallelism are innermost either way. Experts follow as etp, ep, edp, pp or
etp, ep, pp, edp: the stages of a pipeline are the same ranks for both, so tp x cp = etp x ep in the second order.
Source: Megatron-LM, training/initialize.py, --use-tp-pp-dp-mapping; core/parallel_state.py, RankGenerator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cost_models.collectives import nested

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.machine import Machine
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Ints
    from cost_models.collectives import Group


def stage_stride(candidates: Candidates, world: int) -> Ints:
    """Ranks from one stage of a pipeline to the next [n]."""
    return np.where(candidates.tp_pp_dp_mapping, candidates.tp * candidates.cp, world // candidates.pp)


def replica_groups(candidates: Candidates, machine: Machine, world: int, parts: Ints | int = 1) -> tuple[Group, Group]:
    """The dp x cp ranks that hold the same dense parameters, and the ranks that hold the same experts.

    Where replicas lie outside the stages a context-parallel group is in one piece, and the next replica's is a
    pipeline away.

    Parameters
    ----------
    parts : the first of so many equal parts of each group [n]: a divisor of dp where replicas lie outside the stages.
    """
    c = candidates
    tp, cp, dp, holders = (x.astype(np.float64) for x in (c.tp, c.cp, c.dp / parts, c.etp * c.ep))
    copies = np.maximum(1.0, world / (holders * c.pp)) / parts
    outside = c.tp_pp_dp_mapping & (c.pp > 1)
    if not outside.any():
        both = machine.groups([(tp, cp * dp), (holders, copies)])
        return both.take(0), both.take(1)
    together = machine.group(tp, np.where(outside, cp, cp * dp))
    apart = machine.group(np.where(outside, tp * cp * c.pp, 1.0), np.where(outside, dp, 1.0))
    return nested(together, apart), machine.group(np.where(outside, holders * c.pp, holders), copies)


def copy_groups(candidates: Candidates, machine: Machine, world: int) -> tuple[Group, Group]:
    """The ranks that hold the same shard of dense parameters, and of experts: one of each part of their groups."""
    c, parts = candidates, candidates.dp_replicate.astype(np.float64)
    outside = np.where(c.tp_pp_dp_mapping, c.pp, 1)
    dense = c.tp * c.cp * c.dp * outside / parts
    expert = np.maximum(1.0, world / (c.etp * c.ep * c.pp)) * c.etp * c.ep * outside / parts
    both = machine.groups([(dense, parts), (expert, parts)])
    return both.take(0), both.take(1)
