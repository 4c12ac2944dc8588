"""improve(launch): the best single changes of a launch, each predicted, and which keep its checkpoints usable."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.checks.planning import best_of_short_search
from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import SpecError
from autodeploy.exporters.flag_changes import flag_changes
from autodeploy.specs.rl_axes import RL_AXES, value_of
from autodeploy.specs.spec import Spec, no_strategy, spec_hash
from autodeploy.specs.what_if import Improvement, ImproveReport
from autodeploy.what_if.neighbours import neighbours
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from autodeploy.checks.launch import Launch
    from autodeploy.planner import LaunchRules
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.rl import RlStrategy
    from autodeploy.what_if.neighbour import Neighbour
    from autodeploy.what_if.planning import WhatIfPlanner

MAX_SHOWN = 3
WORTH_PCT = 0.1  # a change that brings less is none
SEARCH_LIMIT_S = 20.0
# What decides which shard of a checkpoint is on which rank.
SHARDED_BY = ("tp", "pp", "vpp", "ep", "etp", "distributed_optimizer")
# Optimizer states of another format.
OTHER_STATES = frozenset({"o2_optimizer", "quantized_optimizer"})
DERIVED = ("dp",)


@dataclass(frozen=True, slots=True)
class _Tried:
    neighbour: Neighbour
    plan: Plan
    gain_pct: float
    keeps: bool


def improve(launch: Launch, *, planner: WhatIfPlanner) -> ImproveReport:
    """The three best single changes of a launch, the largest gain first, of each kind of change one.

    A change of degrees or schedule is predicted with layers, recomputation and swap chosen anew; others as they are
    written. Only what the target can launch and what fits counts. Where the launch itself does not fit, changes that
    make it fit count whatever they cost.

    Raises
    ------
    SpecError
        if the strategy's degrees contradict the cluster, or it can't be modelled.
    """
    spec = launch.spec
    if spec.strategy is None:
        raise no_strategy()
    plan = planner.estimate(spec, features=launch.features)
    rules = planner.launch_rules(spec, features=launch.features)
    on = launch.features if launch.features is not None else frozenset(spec.strategy.features) or rules.features
    tried = []
    count = 0
    for neighbour in neighbours(plan, spec.strategy, on, rules):
        predicted = _predicted(neighbour, launch, on, rules, planner)
        count += predicted is not None
        if predicted is None or not predicted.fits:
            continue
        gain = 100.0 * (predicted.tokens_per_s_per_npu / plan.tokens_per_s_per_npu - 1.0)
        if gain >= WORTH_PCT or not plan.fits:
            tried.append(_Tried(neighbour, predicted, gain, _keeps_layout(plan, predicted)))
    keeping = [each for each in tried if each.keeps]
    return ImproveReport(
        plan=plan,
        improvements=tuple(_improvement(launch, plan, each) for each in _best_of_each_kind(tried)[:MAX_SHOWN]),
        keeping_layout=tuple(_improvement(launch, plan, each) for each in _best_of_each_kind(keeping)[:MAX_SHOWN]),
        tried=count,
        best_gain_pct=_best_gain_pct(spec, plan, planner),
        broken_rules=tuple(f"{rule.rule}: {rule.text}" for rule in rules.broken),
        spec=spec.model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        engine_version=ENGINE_VERSION,
    )


def _predicted(
    neighbour: Neighbour, launch: Launch, on: frozenset[str], rules: LaunchRules, planner: WhatIfPlanner
) -> Plan | None:
    """The plan of a neighbour; None where the target can't launch it or it contradicts the cluster."""
    features = on | neighbour.features
    listed = neighbour.strategy.features
    strategy = neighbour.strategy.model_copy(
        update={"features": tuple(sorted({*listed, *neighbour.features})) if listed else ()}
    )
    spec = launch.spec.model_copy(update={"strategy": strategy})
    try:
        if not planner.launch_rules(spec, features=features).names <= rules.names:
            return None
        if neighbour.places:
            return planner.place(spec, features=features)
        return planner.estimate(spec, features=features)
    except SpecError:
        return None


def _keeps_layout(before: Plan, after: Plan) -> bool:
    """Whether a checkpoint of the launch can be loaded as it is: every shard stays on its rank."""
    first, second = before.strategy, after.strategy
    if any(getattr(first, name) != getattr(second, name) for name in SHARDED_BY):
        return False
    folds = [s.schedule if kinds.schedule(s.schedule).ends_meet else "" for s in (first, second)]
    if folds[0] != folds[1]:
        return False
    if OTHER_STATES & set(first.features) != OTHER_STATES & set(second.features):
        return False
    return [stage.layers for stage in before.stages] == [stage.layers for stage in after.stages]


def _best_of_each_kind(tried: list[_Tried]) -> list[_Tried]:
    """The largest gain of each kind; where two are as good, the one that keeps the layout, then the first."""
    order = sorted(
        range(len(tried)),
        key=lambda i: (-round(tried[i].gain_pct, 6), not tried[i].keeps, tried[i].neighbour.places, i),
    )
    kept: dict[str, _Tried] = {}
    for index in order:
        kept.setdefault(tried[index].neighbour.kind, tried[index])
    return list(kept.values())


def _improvement(launch: Launch, plan: Plan, tried: _Tried) -> Improvement:
    before, neighbour = launch.spec.strategy, tried.neighbour
    assert before is not None
    # What was chosen anew is told as it was chosen; the rest as the launch would write it.
    after = tried.plan.strategy if neighbour.places else neighbour.strategy
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    changes = {name: value for name, value in new.items() if value != old[name] and name not in (*DERIVED, "features")}
    if "recompute" in changes:
        changes["recompute"] = after.recompute.model_dump(mode="json", exclude_defaults=True) or {"granularity": "none"}
    if before.rl is not None and after.rl is not None and changes.pop("rl", None) is not None:
        changes |= {axis: now for axis, now in _axes(after.rl).items() if now != _axes(before.rl)[axis]}
    added = sorted(name for name in neighbour.features if name not in changes and not neighbour.places)
    if added and "recompute" not in changes:
        changes["features"] = added
    flags = flag_changes(launch.spec, plan, tried.plan, launch.flags)
    return Improvement(
        name=neighbour.name,
        changes=changes,
        add_flags=flags.add,
        drop_flags=flags.drop,
        gain_pct=tried.gain_pct,
        step_time_s=tried.plan.step_time_s,
        peak_memory_gib=tried.plan.peak_memory_gib,
        keeps_checkpoint_layout=tried.keeps,
        plan=tried.plan,
    )


def _axes(how: RlStrategy) -> dict[str, float | str | None]:
    """Every axis of where and how it generates, as a spec would write it."""
    return {axis: value_of(how, axis) for axis in RL_AXES}


def _best_gain_pct(spec: Spec, plan: Plan, planner: WhatIfPlanner) -> float | None:
    """What the best plan of a short search would bring."""
    result = best_of_short_search(spec, planner, time_limit_s=SEARCH_LIMIT_S)
    if not result.plans:
        return None
    return 100.0 * (result.plans[0].tokens_per_s_per_npu / plan.tokens_per_s_per_npu - 1.0)
