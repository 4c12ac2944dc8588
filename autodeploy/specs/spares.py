"""What a job becomes with fewer nodes: the best plan there, and whether today's checkpoint loads."""

from __future__ import annotations

from autodeploy.specs.base import Document
from autodeploy.specs.comparison import CheckpointChange
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.told import Text


class SparePlan(Document):
    """A plan on the cards that are left. `throughput_pct`: of the tokens a second of the plan on all cards."""

    plan_id: str
    strategy: Strategy
    num_npus: int
    global_batch_size: int
    step_time_s: float
    tokens_per_s: float
    throughput_pct: float
    peak_memory_gib: float
    p_fits: float | None = None
    checkpoint: CheckpointChange


class SpareRow(Document):
    """`nodes` are lost, and `num_npus` cards are left.

    best: the fastest plan there. same_layout: the fastest with today's degrees and schedule on fewer replicas, with the
    batch lowered to what these divide; absent where none fits. reason: why there is no plan.
    """

    nodes: int
    num_npus: int
    best: SparePlan | None = None
    same_layout: SparePlan | None = None
    reason: Text | None = None
