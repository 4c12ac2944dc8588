"""All strategies of a search in one picture: its plans, and a sample of the others at what is proven of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.ui.languages import texts
from autodeploy.figures.labels import layout
from autodeploy.specs.strategy import Strategy
from cost_models.schedule import schedule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.figures.labels import Language
    from autodeploy.specs.planset import ParetoPoint, Plan, PlanSet
    from autodeploy.specs.strategy_bounds import StrategyBound, StrategyBounds

MOST = 3000
"""Strategies of a sample: enough to see where they lie, and few enough to pan."""
NUMBERS = ("step_time_s", "peak_memory_gib", "mfu_pct", "num_npus")
AXES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
COLOURS = (*NUMBERS, *AXES)
WORDS = "search.picture_"
FILTERED = ("tp", "pp", "cp", "ep")


def picture(plan_set: PlanSet, bounds: StrategyBounds, lang: Language) -> dict[str, Any]:
    """Points as the page's script draws them: the ranked plans, other solved strategies that none beats, the rest.

    What is solved is left out of the sample. `solved`: has a time and memory, no bounds. `plan`: its address, where a
    point has a page. `valley_s`: the shortest and the longest step within the valley, null without one.
    """
    plans = list(plan_set.plans)
    known = {_key(plan.strategy.model_dump()) for plan in plans}
    solved = []
    for point in plan_set.pareto:
        key = _key(point.strategy.model_dump())
        if plans and key not in known:
            known.add(key)
            solved.append(_of_pareto(point, plans[0], lang))
    fastest, valley = plan_set.fastest, plan_set.valley
    best_s = fastest.step_time_s if fastest is not None else min((p.step_time_s for p in plans), default=None)
    return {
        "words": {name.removeprefix(WORDS): text for name, text in texts(lang).items() if name.startswith(WORDS)},
        "total": bounds.total,
        "valley_s": None if valley is None or best_s is None else [best_s, best_s * (1.0 + valley.within)],
        "points": [_of_plan(plan) for plan in plans]
        + solved
        + [_of_bound(each, lang) for each in bounds.sample if _key(each.axes) not in known],
    }


def _key(axes: Mapping[str, Any]) -> tuple[int | str, ...]:
    return tuple(axes.get(name, 1) for name in (*AXES, "schedule"))


def _of_plan(plan: Plan) -> dict[str, Any]:
    return {
        "name": layout(plan.strategy),
        "rank": plan.rank,
        "plan": plan.plan_id,
        "step_time_s": plan.step_time_s,
        "peak_memory_gib": plan.peak_memory_gib,
        "num_npus": plan.num_npus_used,
        "mfu_pct": 100.0 * plan.mfu,
        **{name: getattr(plan.strategy, name) for name in AXES},
    }


def _of_pareto(point: ParetoPoint, plan: Plan, lang: Language) -> dict[str, Any]:
    strategy = point.strategy
    axes = {name: getattr(strategy, name) for name in (*AXES, "schedule")}
    # Of one model MFU goes with tokens a second and card.
    mfu = plan.mfu * (point.tokens_per_s / point.num_npus) / (plan.tokens_per_s / plan.num_npus_used)
    return {
        "name": f"{layout(strategy)}, {schedule(strategy.schedule).title_in(lang)}",
        "solved": True,
        "ask": ",".join(f"{name}={value}" for name, value in axes.items()),
        "step_time_s": _short(point.step_time_s),
        "peak_memory_gib": _short(point.peak_memory_gib),
        "num_npus": point.num_npus,
        "mfu_pct": _short(100.0 * mfu),
        **{name: axes[name] for name in AXES},
    }


def _of_bound(each: StrategyBound, lang: Language) -> dict[str, Any]:
    axes = each.axes
    values: dict[str, Any] = {**axes, "dp": each.dp}
    degrees = layout(Strategy.model_construct(**values))  # thousands of points, of axes that were searched
    return {
        "name": f"{degrees}, {schedule(str(axes['schedule'])).title_in(lang)}",
        "ask": ",".join(f"{name}={value}" for name, value in axes.items()),
        "step_time_s": _short(each.step_time_s),
        "peak_memory_gib": _short(each.peak_memory_gib),
        "num_npus": each.num_npus,
        "mfu_pct": _short(100.0 * each.mfu),
        **{name: axes.get(name, 1) for name in AXES},
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")
