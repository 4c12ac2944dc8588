"""Fields of a strategy that follow from its others, and the rest of it once some of these change.

A plan says everything, what was chosen and what followed alike. What the other fields say anyway nobody chose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from autodeploy.specs.search import Axis
from autodeploy.specs.strategy import Strategy
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from collections.abc import Collection

FOLLOWS: Final[dict[str, frozenset[str]]] = {
    "etp": frozenset({"tp", "ep"}),
    "cp_algo": frozenset({"cp"}),
    "ulysses_degree": frozenset({"cp", "cp_algo"}),
    "moe_dispatcher": frozenset({"tp", "ep", "etp"}),
}
"""Fields by the axes with which their best value changes."""
LAID_OUT: Final = ("layers_per_stage", "recompute", "swap", "swap_per_stage")
SWITCHED: Final = ("fsdp", "swap_optimizer", "reuse_fp32_param")
"""Fields of a strategy that are features, too: a search can be asked for them."""
OPTIMIZER_MEMORY: Final = ("reuse_fp32_param", "swap_optimizer", "virtual_optimizer")
"""Places of optimizer states, of which a strategy has one; the last one is a feature alone."""
OF_ALL_AXES: Final = frozenset({*LAID_OUT, *SWITCHED, "distributed_optimizer", "dp_replicate", "features"})
"""Fields that a search decides anew for any other axes: layers, memory, shards, and which features are of use."""
RESHAPING: Final = frozenset({*get_args(Axis), "ulysses_degree", "rl"}) - {"dp"}


def of_plan(before: Strategy, after: Strategy, given: Collection[str]) -> Strategy:
    """A plan's strategy as it was changed, without what is to follow anew: `model_fields_set` has the rest.

    A search chose everything in a plan. Where an axis changes, so does what was chosen for it; where none does,
    everything else stands.

    after : the strategy with the changes. given : the fields that they name.
    """
    gone, axes = {"dp"}, _turned(before, after)
    if axes:
        gone |= OF_ALL_AXES | {name for name, of in FOLLOWS.items() if of & axes} | _of_pipeline(before, after, axes)
        gone |= {"sequence_parallel"} if _sequence_parallel_follows(before) else set()
    elif "swap" in given:
        gone.add("swap_per_stage")
    names = (Strategy.model_fields.keys() - gone) | set(given)
    fields = {name: getattr(after, name) for name in names if getattr(after, name) is not None}
    off = {name for name in SWITCHED if name in given and not fields.get(name)}
    if any(name in given and fields.get(name) for name in OPTIMIZER_MEMORY if name in fields):
        off |= set(OPTIMIZER_MEMORY) - set(given)
    fields |= {name: False for name in off & fields.keys()}
    if "features" not in given and "features" in fields:
        fields["features"] = tuple(name for name in after.features if name not in off)
    return Strategy.model_validate(fields)


def of_launch(before: Strategy, after: Strategy) -> Strategy:
    """A launch's strategy with other degrees: its author chose all but what the old ones left no choice of.

    What the new ones have no use for is left out, too.
    """
    fields: dict[str, Any] = {}
    axes = _turned(before, after)
    if "tp" in axes:
        fields |= {"sequence_parallel": None} if _sequence_parallel_follows(before) else {}
        fields |= {"etp": after.tp} if before.etp == before.tp > 1 else {}
    if after.tp == 1 < before.tp and after.moe_dispatcher == "alltoall_seq":
        fields["moe_dispatcher"] = None
    if "cp" in axes:
        fields |= {"ulysses_degree": None} | ({"cp_algo": None} if 1 in (before.cp, after.cp) else {})
    kind, follows = kinds.schedule(after.schedule), _of_pipeline(before, after, axes)
    if after.pp == 1 < before.pp:
        fields |= {"vpp": 1, "schedule": kinds.plain(1).name}
    elif follows == {"vpp"}:
        fields["vpp"] = kind.chunks or kind.least_chunks
    elif follows == {"schedule"}:
        fields["schedule"] = kinds.plain(after.vpp).name
    return after.model_copy(update=fields)


def _turned(before: Strategy, after: Strategy) -> frozenset[str]:
    return frozenset(name for name in RESHAPING if getattr(before, name) != getattr(after, name))


def _sequence_parallel_follows(strategy: Strategy) -> bool:
    """Whether sequence parallelism is on where it can be: one tensor-parallel rank leaves nothing to choose."""
    return strategy.tp == 1 or strategy.sequence_parallel is not False


def _of_pipeline(before: Strategy, after: Strategy, axes: Collection[str]) -> set[str]:
    """Schedule and chunks derived anew: one stage has neither, and a schedule not any number of chunks."""
    if "pp" in axes and 1 in (before.pp, after.pp):
        return {"vpp", "schedule"}
    if not {"vpp", "schedule"} & set(axes) or kinds.schedule(after.schedule).has_chunks(after.vpp):
        return set()
    return {"vpp"} if "schedule" in axes else {"schedule"}
