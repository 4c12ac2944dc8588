"""Ablation of a spec: each feature of its best plan alone, one after the other, and left out."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from autodeploy.ablation.rl_estimates import estimated_anyway, features_of
from autodeploy.ablation.rl_switches import MECHANISMS, active_mechanisms, without_mechanisms
from autodeploy.ablation.switches import active_features, without
from autodeploy.engine import ENGINE_VERSION
from autodeploy.errors import SpecError
from autodeploy.messages import Message
from autodeploy.planner import estimate, plan, prepare
from autodeploy.specs.ablation import AblationReport, AblationRow, Mode
from autodeploy.specs.planset import PARTS
from autodeploy.stack.features import FEATURES, expand
from cost_models.schedule import SCHEDULES, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

# Features that schedules which pair passes exclude and that a launch without it would have.
STAND_INS = frozenset({"moe_alltoall_overlap", "shared_expert_overlap", "overlap_grad_reduce", "overlap_param_gather"})
UNIT = "% throughput"


def ablate(spec: Spec, *, order: Sequence[str] = (), should_cancel: Callable[[], bool] | None = None) -> AblationReport:
    """What each feature of a strategy buys on its own layout.

    The strategy is the spec's own, or else the best plan of a search. Its placement and degrees stay; a feature that is
    off takes its strategy field back to the framework's usual (`switches.STATED`). Rows: the strategy with none of its
    features (baseline); each alone on the baseline; all one after the other in `order`; each left out of all.

    Parameters
    ----------
    order : features (or groups) of the cumulative rows; those it leaves out follow in the order of the vocabulary.

    Post-training: mechanisms of `rl_switches` come first, those of its update after them.

    Raises
    ------
    SpecError
        if `order` names a feature that the strategy does not use, or the spec has no plan that fits.
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
        raise SpecError(
            Message("common.no_plan_fits"),
            path="",
            hint=Message("ablation.give_strategy_or_see_autodeploy_plan"),
        )
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
    if isinstance(plan, SpecError):
        reason = plan.errors[0].message
        return AblationRow(case=case, feature=feature, mode=mode, fits=False, predicted=None, unit=UNIT, reason=reason)
    if isinstance(against, SpecError):
        return AblationRow(
            case=case,
            feature=feature,
            mode=mode,
            step_time_s=plan.step_time_s,
            peak_memory_gib=plan.peak_memory_gib,
            fits=plan.fits,
            predicted=None,
            unit=UNIT,
            reason=against.errors[0].message,
        )
    moved = {part: getattr(plan.breakdown, part) - getattr(against.breakdown, part) for part in PARTS}
    kept = sorted((p for p in moved if abs(moved[p]) > 1e-3 * plan.step_time_s), key=lambda p: -abs(moved[p]))
    return AblationRow(
        case=case,
        feature=feature,
        mode=mode,
        step_time_s=plan.step_time_s,
        peak_memory_gib=plan.peak_memory_gib,
        fits=plan.fits,
        predicted=100.0 * (against.step_time_s / plan.step_time_s - 1.0),
        unit=UNIT,
        moved={part: moved[part] for part in kept},
    )
