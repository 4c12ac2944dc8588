"""Plans side by side: only what differs."""

from __future__ import annotations

from typing import Literal

from autodeploy.specs.base import Document
from autodeploy.specs.message_table import Text, Told
from autodeploy.specs.strategy import Strategy

Group = Literal["search", "strategy", "time", "breakdown", "stages"]
Cell = str | int | float | bool | None


class ComparedPlan(Document):
    """One column: its plan, the search that found it and its model."""

    plan_id: str
    search_id: str
    model: str
    layout: str


class Difference(Document):
    """One row: a field by its path, its value in each plan, and which column is best where that can be said."""

    group: Group
    field: str
    unit: str = ""
    values: tuple[Cell, ...]
    best: int | None = None


class CheckpointChange(Document):
    """What a checkpoint of one plan is to another that continues from it.

    `how`: loaded as it is; resharded as it is loaded, with the optimizer's states or the weights alone; its weights
    converted by the commands; impossible; or not known. `moved_gb` is read and written, `seconds` at the rate of the
    storage; the restart itself is not among them.
    """

    before: str
    after: str
    how: Literal["loaded", "resharded", "weights_resharded", "weights_converted", "impossible", "unknown"]
    reason: Text
    format: str = ""
    moved_gb: float | None = None
    seconds: float | None = None
    commands: tuple[str, ...] = ()


class Comparison(Told):
    """The plans and the fields in which they differ, in reading order; from the first to each other, what becomes of
    its checkpoints.
    """

    plans: tuple[ComparedPlan, ...]
    differences: tuple[Difference, ...]
    checkpoints: tuple[CheckpointChange, ...] = ()


# What a job becomes with fewer nodes.
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
