"""Changes of a strategy that free memory, each predicted: the cheapest that fits comes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.exporters.flag_changes import flag_changes
from autodeploy.specs.check import Remedy
from autodeploy.specs.strategy import Recompute, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.checks.launch import Launch
    from autodeploy.checks.planning import CheckPlanner
    from autodeploy.planner import LaunchRules
    from autodeploy.specs.check import CheckLimits
    from autodeploy.specs.planset import Plan

# Modules worth naming alone; the others are parts of these or free little.
MODULES = ("norm", "activation", "mla_up_proj", "moe_zero_memory_level0", "core_attn", "mlp", "moe")
OPTIMIZER = ("reuse_fp32_param", "swap_optimizer", "virtual_optimizer")
MAX_REMEDIES = 3
# A single change that costs less than this share of a step needs no company.
CHEAP_SLOWDOWN = 0.01


@dataclass(frozen=True, slots=True)
class Change:
    """One change by name: what it makes of a strategy, and the feature it switches on."""

    name: str
    apply: Callable[[Strategy], Strategy]
    feature: str | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """A strategy with some changes and what it would take."""

    changes: tuple[Change, ...]
    strategy: Strategy
    plan: Plan


def remedies_of(
    launch: Launch, plan: Plan, limits: CheckLimits, rules: LaunchRules, planner: CheckPlanner
) -> tuple[Remedy, ...]:
    """The cheapest changes after which the launch fits: single ones, and together where these cost much or too few."""
    attempt = _Attempts(launch, rules, planner)
    allowed = limits.max_memory * plan.memory_limit_gib
    singles = [tried for change in single_changes(plan, rules) if (tried := attempt.of((change,))) is not None]
    fitting = [tried for tried in singles if tried.plan.peak_memory_gib <= allowed]
    if any(tried.changes == (EVERY_LAYER,) for tried in fitting):
        fitting += _fewest_layers(plan, (), attempt, allowed)
    if all(tried.plan.step_time_s > (1.0 + CHEAP_SLOWDOWN) * plan.step_time_s for tried in fitting):
        fitting += _together(_cheapest_relief_first(singles, plan), plan, attempt, allowed)
    if not fitting:
        fitting += _together(_most_relief_first(singles), plan, attempt, allowed)
    fitting.sort(key=lambda tried: (tried.plan.step_time_s, len(tried.changes)))
    return tuple(_remedy(launch, plan, tried) for tried in _one_of_each_kind(fitting)[:MAX_REMEDIES])


def single_changes(plan: Plan, rules: LaunchRules) -> Iterator[Change]:
    """Changes that the launch target knows, in a fixed order."""
    strategy = plan.strategy
    if not strategy.distributed_optimizer and (strategy.dp or 1) > 1:
        yield Change("distributed_optimizer", _set(distributed_optimizer=True))
    if strategy.tp > 1 and not strategy.sequence_parallel:
        yield Change("sequence_parallel", _set(sequence_parallel=True))
    for name in OPTIMIZER:
        already = name in strategy.features or getattr(strategy, name, False)
        if name in rules.features and not already:
            fields = {name: True} if name in Strategy.model_fields else {}
            yield Change(name, _set(**fields), name)
    if (
        "swap_attention" in rules.memory_choices
        and "attention" not in strategy.swap
        and strategy.swap_per_stage is None
    ):
        yield Change("swap_attention", _set(swap=(*strategy.swap, "attention")), "swap_attention")
    yield from _recomputed(plan, rules)
    size = strategy.micro_batch_size
    while size > 1 and size % 2 == 0:
        size //= 2
        yield Change(f"micro_batch_size:{size}", _set(micro_batch_size=size))


def _recomputed(plan: Plan, rules: LaunchRules) -> Iterator[Change]:
    recompute = plan.strategy.recompute
    if recompute.granularity != "full" and recompute.per_stage is None:
        for name in MODULES:
            if name in rules.memory_choices and name not in recompute.modules:
                wanted = Recompute(granularity="selective", modules=(*recompute.modules, name))  # type: ignore[arg-type]
                yield Change(f"recompute:{name}", _set(recompute=wanted), "selective_recompute")
    if "full" not in rules.memory_choices or recompute == Recompute(granularity="full"):
        return
    yield EVERY_LAYER


def _full(layers: int) -> Change:
    wanted = Recompute(granularity="full", num_layers=layers)
    return Change(f"recompute_full:{layers}", _set(recompute=wanted))


def _set(**fields: Any) -> Callable[[Strategy], Strategy]:
    return lambda strategy: strategy.model_copy(update=fields)


EVERY_LAYER = Change("recompute_full:all", _set(recompute=Recompute(granularity="full")))


class _Attempts:
    """Predicts changed strategies; those that the target can't launch are left out."""

    def __init__(self, launch: Launch, rules: LaunchRules, planner: CheckPlanner) -> None:
        self._launch, self._planner = launch, planner
        self._broken = rules.names

    def of(self, changes: tuple[Change, ...]) -> Tried | None:
        strategy = self._launch.spec.strategy
        assert strategy is not None
        for change in changes:
            strategy = change.apply(strategy)
        added = frozenset(change.feature for change in changes if change.feature is not None)
        features = self._launch.features
        if strategy.features:
            strategy = strategy.model_copy(update={"features": tuple(sorted({*strategy.features, *added}))})
        spec = self._launch.spec.model_copy(update={"strategy": strategy})
        features = None if features is None else features | added
        if not self._planner.launch_rules(spec, features=features).names <= self._broken:
            return None
        return Tried(changes, strategy, self._planner.estimate(spec, features=features))


def _fewest_layers(plan: Plan, others: tuple[Change, ...], attempt: _Attempts, allowed_gib: float) -> list[Tried]:
    """Recomputing as few layers of each stage as fit with the other changes, by bisection.

    Each layer more takes less memory and more time.
    """
    fitting: list[Tried] = []
    low = plan.strategy.recompute.num_layers or 0  # does not fit
    high = max(sum(stage.layers) for stage in plan.stages)  # is every layer
    while high - low > 1:
        count = (low + high) // 2
        tried = attempt.of((*others, _full(count)))
        if tried is not None and tried.plan.peak_memory_gib <= allowed_gib:
            high = count
            fitting = [tried]
        else:
            low = count
    return fitting


def _cheapest_relief_first(singles: list[Tried], plan: Plan) -> list[Change]:
    """Changes that free memory, those first that lose least time for each GiB they free."""

    def price(tried: Tried) -> float:
        freed_gib = plan.peak_memory_gib - tried.plan.peak_memory_gib
        return max(0.0, tried.plan.step_time_s - plan.step_time_s) / freed_gib

    freeing = [tried for tried in singles if tried.plan.peak_memory_gib < plan.peak_memory_gib]
    return [tried.changes[0] for tried in sorted(freeing, key=price)]


def _most_relief_first(singles: list[Tried]) -> list[Change]:
    return [tried.changes[0] for tried in sorted(singles, key=lambda tried: tried.plan.peak_memory_gib)]


def _together(changes: list[Change], plan: Plan, attempt: _Attempts, allowed_gib: float) -> list[Tried]:
    """Changes of different kinds in this order until they fit together, without those that turn out to be idle.

    A change takes the place of an earlier one of its kind where that frees more.
    """

    def fits(tried: Tried | None) -> bool:
        return tried is not None and tried.plan.peak_memory_gib <= allowed_gib

    found: Tried | None = None
    for change in changes:
        kept = () if found is None else tuple(c for c in found.changes if _kind(c) != _kind(change))
        tried = attempt.of((*kept, change))
        if tried is not None and (found is None or tried.plan.peak_memory_gib < found.plan.peak_memory_gib):
            found = tried
        if fits(found):
            break
    if found is None or not fits(found):
        return []
    for change in found.changes[-2::-1]:  # without the last it did not fit; the first ones cost least
        fewer = attempt.of(tuple(c for c in found.changes if c is not change))
        if fewer is not None and fits(fewer):
            found = fewer
    if EVERY_LAYER not in found.changes:
        return [found]
    others = tuple(change for change in found.changes if change is not EVERY_LAYER)
    return _fewest_layers(plan, others, attempt, allowed_gib) or [found]


def _kind(change: Change) -> str:
    """Changes of one kind replace each other: recompute choices, micro batch sizes, places of optimizer states."""
    kind = change.name.partition(":")[0]
    if kind.startswith("recompute"):
        return "recompute"
    return "optimizer" if kind in OPTIMIZER else kind


def _one_of_each_kind(tried: list[Tried]) -> list[Tried]:
    kept: dict[tuple[str, ...], Tried] = {}
    for each in tried:
        kept.setdefault(tuple(_kind(change) for change in each.changes), each)
    return list(kept.values())


def _remedy(launch: Launch, plan: Plan, tried: Tried) -> Remedy:
    assert launch.spec.strategy is not None
    flags = flag_changes(launch.spec, plan, tried.plan, launch.flags)
    before = launch.spec.strategy.model_dump(mode="json")
    after = tried.strategy.model_dump(mode="json")
    return Remedy(
        names=tuple(change.name for change in tried.changes),
        changes={field: value for field, value in after.items() if value != before[field]},
        add_flags=flags.add,
        drop_flags=flags.drop,
        step_time_s=tried.plan.step_time_s,
        peak_memory_gib=tried.plan.peak_memory_gib,
        slowdown=tried.plan.step_time_s / plan.step_time_s - 1.0,
    )
