"""Ablation of a spec: each feature of its best plan alone, one after the other, and left out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.post_training.samples import unnamed_in_updates
from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.search.planner import estimate, plan, prepare
from autodeploy.search.post_training.planning import estimate_rl
from autodeploy.specs.plan_details import AblationReport, AblationRow, Mode
from autodeploy.specs.planset import PARTS
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.stack.features import FEATURES, expand
from cost_models.schedule import SCHEDULES, kinds, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.spec import Spec


# Switching features of a strategy off.
def _plain_schedule(strategy: Strategy) -> Strategy:
    """The usual schedule of the same stages; a V-shaped one folds back to one chunk a stage."""
    if kinds.schedule(strategy.schedule).ends_meet:
        return strategy.model_copy(update={"schedule": kinds.plain(1).name, "vpp": 1, "layers_per_stage": None})
    return strategy.model_copy(update={"schedule": kinds.plain(strategy.vpp).name})


def _flat_dispatch(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"moe_dispatcher": "alltoall"})


def _sliced_experts(strategy: Strategy) -> Strategy:
    """Tensor parallel ranks slice each expert again, so the expert group is smaller by their number."""
    if strategy.etp != 1 or strategy.tp == 1:
        return strategy
    return strategy.model_copy(update={"etp": strategy.tp, "ep": max(1, strategy.ep // strategy.tp)})


def _recompute_all(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"recompute": Recompute(granularity="full")})


def _keep_on_device(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"swap": (), "swap_per_stage": None})


def _even_layers(strategy: Strategy) -> Strategy:
    return strategy.model_copy(update={"layers_per_stage": None})


def _ring(strategy: Strategy) -> Strategy:
    """Keys and values that go round all ranks of the sequence: what every framework has, whatever the heads."""
    return strategy.model_copy(update={"cp_algo": "ring", "ulysses_degree": None})


def _switched_on(strategy: Strategy, name: str, on: frozenset[str]) -> dict[str, bool]:
    """For each part of a strategy's document, whether it says that the feature of this name is on."""
    return {
        "schedule": strategy.schedule == name,
        "dispatcher": strategy.moe_dispatcher == "hierarchical",
        "recompute": strategy.recompute.granularity == "selective",
        "swap": any(each != "attention" for each in strategy.swap),
        "attention_swap": "attention" in strategy.swap,
        "placement": name in on and strategy.layers_per_stage is not None,
        "field": getattr(strategy, name, False) is True,
        "sequence": strategy.cp > 1 and strategy.cp_algo == name.removesuffix("_cp"),
        "experts": strategy.etp == 1 and strategy.tp > 1 and strategy.ep > 1,
        "base": False,
    }


# What a part of the document says where the feature that it switches is off.
_OFF: dict[str, Callable[[Strategy], Strategy]] = {
    "schedule": _plain_schedule,
    "dispatcher": _flat_dispatch,
    "recompute": _recompute_all,
    "swap": _keep_on_device,
    "attention_swap": _keep_on_device,
    "placement": _even_layers,
    "sequence": _ring,
    "experts": _sliced_experts,
}


def active_features(strategy: Strategy, on: frozenset[str]) -> tuple[str, ...]:
    """Features that this strategy uses, of those that are on; a sequence cut by the ring alone uses none for it."""
    stated = {name: feature.switch for name, feature in FEATURES.items() if feature.switch}
    listed = set(strategy.features) or set(on)
    used = {name for name, switch in stated.items() if _switched_on(strategy, name, on)[switch]}
    return tuple(sorted(used | (listed - stated.keys())))


def without(strategy: Strategy, features: frozenset[str]) -> Strategy:
    """The strategy with these of its features switched off."""
    for name in sorted(features):
        strategy = _off(strategy, name)
    left = tuple(name for name in strategy.features if name not in features)
    return strategy.model_copy(update={"features": left})


def _off(strategy: Strategy, name: str) -> Strategy:
    """The strategy with what its document says of a feature switched off; its list of features is another matter."""
    switch = FEATURES[name].switch if name in FEATURES else ""
    if switch == "field":
        return strategy.model_copy(update={name: False})
    return _OFF[switch](strategy) if switch in _OFF else strategy


# Switching mechanisms of post-training off.
@dataclass(frozen=True)
class Mechanism:
    """A choice of post-training that can be taken back. used : by a strategy; off : what it says without."""

    used: Callable[[RlStrategy], bool]
    off: Callable[[RlStrategy], RlStrategy]


def _separated(layout: RlStrategy) -> RlStrategy:
    """Both on cards of their own, split as is best; nothing makes room for the other then."""
    return layout.model_copy(update={"placement": "separate", "generation_npus": None, "offload": ()})


def _in_turn(layout: RlStrategy) -> RlStrategy:
    """The same cards generate, and training waits for them."""
    return layout.model_copy(update={"placement": "separate", "staleness": 0})


def _whole_responses(layout: RlStrategy) -> RlStrategy:
    return layout.model_copy(update={"partial_rollout": False})


def _engine(layout: RlStrategy, **changes: str) -> RlStrategy:
    return layout.model_copy(update={"generation": layout.generation.model_copy(update=changes)})


# In the order in which they are added. One set of cards, and updates that generation is ahead, exclude each other.
MECHANISMS: dict[str, Mechanism] = {
    "fusion": Mechanism(lambda r: r.placement == "colocated", _separated),
    "staleness": Mechanism(lambda r: r.placement == "async" and r.staleness > 0, _in_turn),
    "partial_rollout": Mechanism(lambda r: r.partial_rollout, _whole_responses),
    "graph_mode": Mechanism(lambda r: r.generation.mode == "graph", lambda r: _engine(r, mode="eager")),
    "generation_precision": Mechanism(
        lambda r: r.generation.precision != "bf16", lambda r: _engine(r, precision="bf16")
    ),
}


def active_mechanisms(strategy: Strategy) -> tuple[str, ...]:
    """Mechanisms of post-training that a strategy uses; none of one of pre-training."""
    if strategy.rl is None:
        return ()
    return tuple(name for name, each in MECHANISMS.items() if each.used(strategy.rl))


def without_mechanisms(strategy: Strategy, names: Collection[str]) -> Strategy:
    """The strategy with these of its mechanisms switched off."""
    layout = strategy.rl
    for name, each in MECHANISMS.items():
        if layout is not None and name in names:
            layout = each.off(layout)
    return strategy.model_copy(update={"rl": layout})


# Variants of a strategy of post-training, predicted whether they fit or not.
def features_of(spec: Spec, strategy: Strategy) -> frozenset[str]:
    """Features of the update that are on: the strategy's, and what today's software has on without naming it."""
    return frozenset(strategy.features) | unnamed_in_updates(profile_of(spec.cluster).vendor)


def estimated_anyway(spec: Spec, strategy: Strategy, features: frozenset[str]) -> Plan | SpecError:
    """The prediction of a strategy, or why it can't run at all.

    Where experts lie over more ranks than any split leaves to training, over the next fewer: so their group is made
    when training has cards of its own.
    """
    try:
        return estimate_rl(spec, strategy, features=features, beyond_memory=True)
    except SpecError as error:
        if strategy.rl is None or strategy.rl.placement == "colocated" or strategy.rl.generation_npus is not None:
            return error
        for ep in (strategy.ep // d for d in range(2, strategy.ep + 1) if strategy.ep % d == 0):
            try:
                fewer = strategy.model_copy(update={"ep": ep})
                return estimate_rl(spec, fewer, features=features, beyond_memory=True)
            except SpecError:
                continue
        return error


# Features that schedules which pair passes exclude and that a launch without it would have.
STAND_INS = frozenset({"moe_alltoall_overlap", "shared_expert_overlap", "overlap_grad_reduce", "overlap_param_gather"})
UNIT = "% throughput"


def ablate(spec: Spec, *, order: Sequence[str] = (), should_cancel: Callable[[], bool] | None = None) -> AblationReport:
    """Gain of each feature of a strategy on its own layout.

    The strategy is the spec's own, or else the best plan of a search. Its placement and degrees stay; a feature that is
    off takes its strategy field back to the framework's usual (`switches.STATED`). Rows: the strategy with none of its
    features (baseline); each alone on the baseline; all one after the other in `order`; each left out of all.

    order : features (or groups) of the cumulative rows; those it leaves out follow in the order of the vocabulary.

    Post-training: mechanisms of `rl_switches` come first, those of its update after them.

    Raises SpecError if `order` names a feature that the strategy does not use, or the spec has no plan that fits.
    """
    strategy, on = _strategy_of(spec, should_cancel)
    active = (*active_mechanisms(strategy), *active_features(strategy, on))
    ordered = _ordered(order, active)
    name = spec.model.name or "model"

    @cache
    def predicted(kept: frozenset[str], stand_ins: frozenset[str]) -> Plan | SpecError:
        removed = frozenset(active) - kept
        variant = without(without_mechanisms(strategy, removed), removed - MECHANISMS.keys())
        features = (kept | stand_ins) - MECHANISMS.keys()
        if spec.training.rl is not None:
            return estimated_anyway(spec, variant, features)
        return estimate(spec.model_copy(update={"strategy": variant}), features=features)

    none = frozenset[str]()
    whole, baseline = predicted(frozenset(active), none), predicted(none, none)
    rows = [_row(name, "none", "baseline", baseline, baseline)]
    rows += [_row(name, f, "alone", predicted(frozenset({f}), none), baseline) for f in ordered]
    before = baseline
    for number, feature in enumerate(ordered):
        after = predicted(frozenset(ordered[: number + 1]), none)
        rows.append(_row(name, feature, "cumulative", after, before))
        before = after
    for feature in ordered:
        pairs = feature in SCHEDULES and schedule(feature).pairs
        stand_ins = STAND_INS & on if pairs else none
        rows.append(_row(name, feature, "leave_one_out", predicted(frozenset(active) - {feature}, stand_ins), whole))
    return AblationReport(rows=tuple(rows), engine_version=ENGINE_VERSION)


def _strategy_of(spec: Spec, should_cancel: Callable[[], bool] | None) -> tuple[Strategy, frozenset[str]]:
    """The strategy to take apart, and the features that the spec lets be on."""
    on = frozenset[str]() if spec.training.rl is not None else prepare(spec).choice.on
    if spec.strategy is not None:
        return spec.strategy, on or features_of(spec, spec.strategy)
    result = plan(spec, should_cancel=should_cancel)
    if not result.plans:
        raise SpecError(Message("common.no_plan_fits"), path="", hint=Message("ablation.give_strategy"))
    strategy = result.plans[0].strategy
    return strategy, on or features_of(spec, strategy)


def _ordered(order: Sequence[str], active: tuple[str, ...]) -> list[str]:
    wanted = [member for name in order for member in expand(name)]
    for name in wanted:
        if name not in active:
            raise SpecError(
                Message("ablation.strategy_does_not_use", name=name),
                path="/order",
                hint=Message("ablation.it_uses", names=", ".join(active) or "no feature"),
            )
    all_names = (*MECHANISMS, *FEATURES)
    return [*dict.fromkeys(wanted), *(name for name in all_names if name in active and name not in wanted)]


def _row(case: str, feature: str, mode: Mode, plan: Plan | SpecError, against: Plan | SpecError) -> AblationRow:
    """A row of a plan compared with another: what the throughput changes by, and which parts moved."""
    row: dict[str, Any] = {"case": case, "feature": feature, "mode": mode, "unit": UNIT, "predicted": None}
    if isinstance(plan, SpecError):
        return AblationRow(**row, fits=False, reason=plan.errors[0].message)
    row |= {"step_time_s": plan.step_time_s, "peak_memory_gib": plan.peak_memory_gib, "fits": plan.fits}
    if isinstance(against, SpecError):
        return AblationRow(**row, reason=against.errors[0].message)
    moved = {part: getattr(plan.breakdown, part) - getattr(against.breakdown, part) for part in PARTS}
    kept = sorted((p for p in moved if abs(moved[p]) > 1e-3 * plan.step_time_s), key=lambda p: -abs(moved[p]))
    row["predicted"] = 100.0 * (against.step_time_s / plan.step_time_s - 1.0)
    return AblationRow(**row, moved={part: moved[part] for part in kept})
