"""check(launch, limits) -> CheckReport: can it start, will it fit, how far from the best, is it slower than before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.analysis.launch_checks.baseline import Baseline, changes_between, predicted
from autodeploy.analysis.launch_checks.launch import best_of_short_search
from autodeploy.analysis.launch_checks.legality import judge_script, legality_gate, refuse_unknown_rules, with_allowed
from autodeploy.formats.megatron.launch import flag_changes
from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.specs.answers import DEFAULT_REGRESSION, CheckLimits, CheckReport, Compared, Gate, Remedy, Shortage
from autodeploy.specs.derived_fields import OPTIMIZER_MEMORY
from autodeploy.specs.spec import spec_hash
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.stack.releases import framework_for
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.analysis.launch_checks.legality import FlagVerdict
    from autodeploy.search.planner import LaunchRules, Planner
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec


# Changes of a strategy that free memory, each predicted.
# Modules worth recomputing alone; the others are parts of these or free little.
MODULES = ("norm", "activation", "mla_up_proj", "moe_zero_memory_level0", "core_attn", "mlp", "moe")
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
    launch: Launch, plan: Plan, limits: CheckLimits, rules: LaunchRules, planner: Planner
) -> tuple[Remedy, ...]:
    """The cheapest changes after which the launch fits: single ones, and together where these cost much or too few."""
    attempt = _Attempts(launch, rules, planner)
    allowed = limits.max_memory * plan.memory_limit_gib
    singles = [tried for change in single_changes(plan, rules) if (tried := attempt.of((change,))) is not None]
    fitting = [tried for tried in singles if tried.plan.highest_gib <= allowed]
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
    for name in OPTIMIZER_MEMORY:
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

    def __init__(self, launch: Launch, rules: LaunchRules, planner: Planner) -> None:
        self._launch, self._planner = launch, planner
        self._broken = rules.names

    def of(self, changes: tuple[Change, ...]) -> Tried | None:
        strategy = self._launch.spec.strategy
        assert strategy is not None
        for change in changes:
            strategy = change.apply(strategy)
        added = frozenset(change.feature for change in changes if change.feature is not None)
        if strategy.named_features is not None:
            strategy = strategy.model_copy(update={"features": tuple(sorted({*strategy.features, *added}))})
        spec = self._launch.spec.model_copy(update={"strategy": strategy})
        if not self._planner.launch_rules(spec).names <= self._broken:
            return None
        return Tried(changes, strategy, self._planner.estimate(spec))


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
        if tried is not None and tried.plan.highest_gib <= allowed_gib:
            high = count
            fitting = [tried]
        else:
            low = count
    return fitting


def _cheapest_relief_first(singles: list[Tried], plan: Plan) -> list[Change]:
    """Changes that free memory, those first that lose least time for each GiB they free."""

    def price(tried: Tried) -> float:
        freed_gib = plan.highest_gib - tried.plan.highest_gib
        return max(0.0, tried.plan.step_time_s - plan.step_time_s) / freed_gib

    freeing = [tried for tried in singles if tried.plan.highest_gib < plan.highest_gib]
    return [tried.changes[0] for tried in sorted(freeing, key=price)]


def _most_relief_first(singles: list[Tried]) -> list[Change]:
    return [tried.changes[0] for tried in sorted(singles, key=lambda tried: tried.plan.highest_gib)]


def _together(changes: list[Change], plan: Plan, attempt: _Attempts, allowed_gib: float) -> list[Tried]:
    """Changes of different kinds in this order until they fit together, without those that turn out to be idle.

    A change takes the place of an earlier one of its kind where that frees more.
    """

    def fits(tried: Tried | None) -> bool:
        return tried is not None and tried.plan.highest_gib <= allowed_gib

    found: Tried | None = None
    for change in changes:
        kept = () if found is None else tuple(c for c in found.changes if _kind(c) != _kind(change))
        tried = attempt.of((*kept, change))
        if tried is not None and (found is None or tried.plan.highest_gib < found.plan.highest_gib):
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
    return "optimizer" if kind in OPTIMIZER_MEMORY else kind


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
        changes={field: value for field, value in after.items() if value != before.get(field)},
        add_flags=flags.add,
        drop_flags=flags.drop,
        step_time_s=tried.plan.step_time_s,
        peak_memory_gib=tried.plan.highest_gib,
        slowdown=tried.plan.step_time_s / plan.step_time_s - 1.0,
    )


GIB = 2**30
SEARCH_LIMIT_S = 60.0
NO_LIMITS = CheckLimits()


def check(
    launch: Launch,
    limits: CheckLimits = NO_LIMITS,
    *,
    planner: Planner,
    baseline: Baseline | Plan | None = None,
) -> CheckReport:
    """Hold a launch against the rules of its framework, predict it, and hold limits against the prediction.

    A launch that breaks a rule so that nothing can be predicted has a report without a plan.

    planner : `autodeploy.search.planner`, or what stands for it.
    baseline : what was good before; the launch may be slower than it by `limits.max_slowdown` (5 % if absent).

    Raises SpecError if the strategy can't be modelled, or its degrees contradict the cluster in a way that no rule
    names.
    """
    refuse_unknown_rules(limits.allow_rules)
    before = baseline if isinstance(baseline, Baseline | None) else Baseline(plan=baseline)
    verdict = _judged(launch, limits)
    spec = launch.spec
    rules = planner.launch_rules(spec)
    broken = with_allowed([*(verdict.broken if verdict is not None else ()), *rules.broken], limits)
    report = CheckReport(
        passed=False,
        source=launch.source,
        engine_version=ENGINE_VERSION,
        spec=spec.model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        limits=limits,
        release="" if verdict is None else verdict.release.title,
        gates=(legality_gate(broken),),
        broken_rules=broken,
        unmodelled=launch.unmodelled,
        assumptions=launch.assumptions,
        contradictions=launch.contradictions,
        unknown_flags=launch.unknown_flags,
        flags=None if launch.flags is None else dict(launch.flags),
    )
    then = None if before is None else predicted(before, planner)
    try:
        plan = planner.estimate(spec)
    except SpecError as error:
        if report.gates[0].passed:
            raise
        changes = None if before is None else changes_between(before, then, launch, None)
        return report.model_copy(update={"unpredicted": str(error), "changes": changes})
    return _with_plan(report, launch, plan, rules, planner, before, then)


def _with_plan(
    report: CheckReport,
    launch: Launch,
    plan: Plan,
    rules: LaunchRules,
    planner: Planner,
    baseline: Baseline | None,
    then: Plan | None,
) -> CheckReport:
    """The report with a prediction, and every gate that needs one."""
    limits = report.limits
    best = _best(launch.spec, plan, planner)
    before = None if then is None else Compared(plan=then, slowdown=_slowdown(plan, then))
    gates = (*report.gates, *_gates(plan, limits, _longest(launch, plan, limits, planner), best, before))
    fits = plan.highest_gib <= limits.max_memory * plan.memory_limit_gib
    return report.model_copy(
        update={
            "passed": all(gate.passed for gate in gates),
            "plan": plan,
            "gates": gates,
            "best": best,
            "baseline": before,
            "changes": None if baseline is None else changes_between(baseline, then, launch, plan),
            "shortage": None if fits else _shortage(plan, limits),
            "remedies": () if fits or plan.rl is not None else remedies_of(launch, plan, limits, rules, planner),
        }
    )


def _judged(launch: Launch, limits: CheckLimits) -> FlagVerdict | None:
    """The command line against its release; None where there is none."""
    if launch.script is None:
        return None
    search, profile = launch.spec.search, load_profile(launch.spec.cluster.profile)
    target = framework_for("megatron", profile.vendor) if launch.script.is_spelled else search.target
    return judge_script(launch.script, target, profile, launch.ranks, limits, search.target_release)


def _best(spec: Spec, plan: Plan, planner: Planner) -> Compared | None:
    """The best plan of a short search; None where no plan fits."""
    result = best_of_short_search(spec, planner, time_limit_s=SEARCH_LIMIT_S)
    if not result.plans:
        return None
    return Compared(plan=result.plans[0], slowdown=_slowdown(plan, result.plans[0]), status=result.status)


def _slowdown(plan: Plan, other: Plan) -> float:
    """By what share of the other's time a token takes longer on a card."""
    return other.tokens_per_s_per_npu / plan.tokens_per_s_per_npu - 1.0


def _longest(launch: Launch, plan: Plan, limits: CheckLimits, planner: Planner) -> int | None:
    """Tokens of the longest sample that keeps the limit of memory; None where all do, or none worth the name."""
    spec, allowed_gib = launch.spec, limits.max_memory * plan.memory_limit_gib
    if spec.training.pads_samples or plan.highest_gib <= allowed_gib:
        return None
    if limits.max_memory >= 1.0:
        return plan.fits_to_tokens
    held = spec.search.model_copy(update={"memory_limit_gib": allowed_gib})
    return planner.estimate(spec.model_copy(update={"search": held})).fits_to_tokens


def _gates(
    plan: Plan, limits: CheckLimits, longest: int | None, best: Compared | None, before: Compared | None
) -> tuple[Gate, ...]:
    used, most = plan.highest_gib / plan.memory_limit_gib, limits.max_memory
    chance = plan.p_within(most * plan.memory_limit_gib)
    passed = chance >= limits.min_p_fits or longest is not None
    gates = [Gate(name="memory", passed=passed, value=used, limit=most, chance=chance, up_to_tokens=longest)]
    if best is not None:
        limit = limits.max_slowdown if before is None else None
        gates.append(Gate(name="slowdown", passed=_within(best, limit), value=best.slowdown, limit=limit))
    if before is not None:
        limit = DEFAULT_REGRESSION if limits.max_slowdown is None else limits.max_slowdown
        gates.append(Gate(name="baseline", passed=_within(before, limit), value=before.slowdown, limit=limit))
    passed = limits.min_mfu is None or plan.mfu >= limits.min_mfu
    gates.append(Gate(name="mfu", passed=passed, value=plan.mfu, limit=limits.min_mfu))
    return tuple(gates)


def _within(compared: Compared, limit: float | None) -> bool:
    return limit is None or compared.slowdown <= limit


def _shortage(plan: Plan, limits: CheckLimits) -> Shortage:
    """The fullest stage against what the limit allows."""
    at_start = plan.start_gib > plan.peak_memory_gib
    needs = [(each.start_gib or 0.0) if at_start else each.total_gib for each in plan.stages]
    stage = max(range(len(plan.stages)), key=lambda index: needs[index])
    parts = {"start": needs[stage]} if at_start else plan.stages[stage].memory_gib.model_dump()
    largest = max(parts, key=lambda name: parts[name])
    needed = round(needs[stage] * GIB)
    allowed = round(limits.max_memory * plan.memory_limit_gib * GIB)
    return Shortage(
        stage=stage,
        needed_bytes=needed,
        limit_bytes=allowed,
        excess_bytes=needed - allowed,
        largest_part=largest,
        largest_part_bytes=round(parts[largest] * GIB),
    )
