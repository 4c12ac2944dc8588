"""Strategies that are one change away from another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.ablation.switches import active_features
from autodeploy.specs.following import of_launch
from autodeploy.specs.strategy import Recompute
from autodeploy.stack.features import FEATURES
from autodeploy.strategies.space import OPTIMIZER_MEMORY
from autodeploy.what_if.generation_neighbours import generation_neighbours
from autodeploy.what_if.neighbour import Neighbour
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.planner import LaunchRules
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.strategy import Strategy

# Modules worth recomputing alone; the others are parts of these or free little.
MODULES = ("norm", "activation", "mla_up_proj", "moe_zero_memory_level0", "core_attn", "mlp", "moe")
OWN_SWITCH = frozenset({"", "field"})  # of features that are on or off, whatever else the document says
# Parts of the document by which memory features are switched.
MEMORY_SWITCHES = frozenset({"recompute", "swap", "attention_swap"})
MEMORY_FEATURES = frozenset(name for name, feature in FEATURES.items() if feature.switch in MEMORY_SWITCHES)


def neighbours(plan: Plan, launched: Strategy, on: frozenset[str], rules: LaunchRules) -> Iterator[Neighbour]:
    """Every strategy one change away that the launch target has a name for, in a fixed order.

    Parameters
    ----------
    plan : the launch as predicted. launched : its strategy as written. on : features that it runs with.
    """
    yield from generation_neighbours(launched, plan.num_npus_used)
    yield from _memory(plan, launched, rules)
    yield from _switches(launched, on, rules)
    yield from _sizes(launched)
    yield Neighbour("placement", "placement", _free(launched), MEMORY_FEATURES & rules.features, places=True)
    yield from _degrees(launched, plan, rules)
    yield from _schedules(launched, rules)


def _memory(plan: Plan, launched: Strategy, rules: LaunchRules) -> Iterator[Neighbour]:
    """Less recomputation, and other kinds of it, on the same layers."""

    def recomputed(name: str, wanted: Recompute, *features: str) -> Neighbour:
        return Neighbour(name, "recompute", _with(launched, recompute=wanted), frozenset(features) & rules.features)

    recompute = launched.recompute
    if recompute.granularity == "none":
        return
    yield recomputed("recompute:none", Recompute())
    layers = max(sum(stage.layers) for stage in plan.stages)
    most = min(recompute.num_layers or layers, layers)
    if recompute.granularity == "full" and recompute.per_stage is None and recompute.num_layers_per_stage is None:
        for count in sorted({most // 2, 3 * most // 4, most - 1} - {0, most}):
            yield recomputed(f"recompute_full:{count}", Recompute(granularity="full", num_layers=count))
    if "selective_recompute" in rules.features:
        for name in MODULES:
            if name in rules.memory_choices and recompute.modules != (name,):
                wanted = Recompute(granularity="selective", modules=(name,))  # type: ignore[arg-type]
                yield recomputed(f"recompute:{name}", wanted, "selective_recompute")


def _switches(launched: Strategy, on: frozenset[str], rules: LaunchRules) -> Iterator[Neighbour]:
    """Features that the target has and the launch leaves off."""
    active = {*active_features(launched, on), *on}
    for name, feature in FEATURES.items():
        if feature.switch not in OWN_SWITCH or name in active or name not in rules.features:
            continue
        if name in OPTIMIZER_MEMORY:
            fields = {name: True} if name in type(launched).model_fields else {}
            yield Neighbour(name, "optimizer_memory", _with(launched, **fields), frozenset({name}))
        else:
            yield Neighbour(name, name, launched, frozenset({name}))
    for name in OPTIMIZER_MEMORY:
        if getattr(launched, name, False):
            features = tuple(each for each in launched.features if each != name)
            yield Neighbour(f"{name}:off", "optimizer_memory", _with(launched, **{name: False}, features=features))
    if not launched.distributed_optimizer:
        yield Neighbour("distributed_optimizer", "distributed_optimizer", _with(launched, distributed_optimizer=True))
    if launched.tp > 1 and launched.sequence_parallel is False:
        yield Neighbour("sequence_parallel", "sequence_parallel", _with(launched, sequence_parallel=True))
    if launched.moe_dispatcher is not None:
        for dispatcher in ("alltoall", "alltoall_seq", "allgather", "hierarchical"):
            if dispatcher != launched.moe_dispatcher and (
                dispatcher != "hierarchical" or "hierarchical_a2a" in rules.features
            ):
                changed = _with(launched, moe_dispatcher=dispatcher)
                yield Neighbour(f"moe_dispatcher:{dispatcher}", "moe_dispatcher", changed)


def _sizes(launched: Strategy) -> Iterator[Neighbour]:
    for size in _beside(launched.micro_batch_size):
        yield Neighbour(f"micro_batch_size:{size}", "micro_batch_size", _with(launched, micro_batch_size=size))


def _degrees(launched: Strategy, plan: Plan, rules: LaunchRules) -> Iterator[Neighbour]:
    """One degree doubled or halved; what depends on it is chosen anew."""
    memory = MEMORY_FEATURES & rules.features
    free = _free(launched)
    for axis in ("tp", "pp", "cp", "ep"):
        for value in _beside(getattr(launched, axis)):
            if axis == "ep" and plan.strategy.etp is None:
                continue  # no experts
            changed = _with(free, **{axis: value})
            yield Neighbour(f"{axis}:{value}", axis, of_launch(free, changed), memory, places=True)
    if plan.strategy.etp is not None and launched.tp > 1:
        etp = 1 if plan.strategy.etp != 1 else launched.tp
        yield Neighbour(f"etp:{etp}", "etp", _with(free, etp=etp), memory, places=True)


def _schedules(launched: Strategy, rules: LaunchRules) -> Iterator[Neighbour]:
    """Other schedules of the same stages, and more or fewer virtual stages."""
    if launched.pp == 1:
        return
    memory = MEMORY_FEATURES & rules.features
    chunks = [1, 2, 2 * launched.vpp, *([launched.vpp // 2] if launched.vpp >= 4 else [])]
    ways = [(kinds.plain(vpp).name, vpp) for vpp in chunks]
    for kind in kinds.searched():
        if kind.pairs and (kind.name in rules.features or kind.name not in FEATURES):
            ways.append((kind.name, kind.chunks or max(kind.least_chunks, launched.vpp)))
    for schedule, vpp in dict.fromkeys(ways):
        if (schedule, vpp) == (launched.schedule, launched.vpp):
            continue
        added = frozenset({schedule} & set(FEATURES))
        changed = _with(_free(launched), schedule=schedule, vpp=vpp)
        name = f"schedule:{schedule}" + (f" vpp:{vpp}" if vpp != launched.vpp else "")
        yield Neighbour(name, "schedule", changed, memory | added, places=True)


def _beside(value: int) -> list[int]:
    return [2 * value, *([value // 2] if value % 2 == 0 else [])]


def _free(strategy: Strategy) -> Strategy:
    """The same degrees; where layers are and what they recompute or swap is open."""
    return _with(strategy, layers_per_stage=None, recompute=Recompute(), swap=(), swap_per_stage=None, dp=None)


def _with(strategy: Strategy, **fields: Any) -> Strategy:
    return strategy.model_copy(update=fields)
