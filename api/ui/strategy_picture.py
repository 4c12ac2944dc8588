"""All strategies of a search in one picture: its plans, and a sample of the others at what is proven of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from api.ui.languages import texts, title
from autodeploy.reports.wording import degrees, field_name, short_degrees
from cost_models.schedule import schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autodeploy.messages import Language
    from autodeploy.specs.answers import StrategyBounds
    from autodeploy.specs.planset import ParetoPoint, Plan, PlanSet, SolvedStrategies

MAX_SAMPLED_STRATEGIES = 3000
"""Strategies of a sample: enough to see where they lie, and few enough to pan."""
NUMBERS = ("step_time_s", "peak_memory_gib", "mfu_pct", "num_npus")
AXES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
COLOURS = (*NUMBERS, *AXES)
USUAL_DISPATCHER = "alltoall"
WORDS = "search.picture_"
FILTERED = ("tp", "pp", "cp", "ep")


class Numbers(NamedTuple):
    """What a point shows beside its axes: replicas, cards, seconds of a step, GiB on the card and MFU as a share."""

    dp: int
    num_npus: int
    step_time_s: float
    peak_memory_gib: float
    mfu: float


def picture(plan_set: PlanSet, bounds: StrategyBounds, lang: Language) -> dict[str, Any]:
    """Points as the page's script draws them: the ranked plans, all others that were solved, and a sample of the rest.

    A strategy is one point. `solved`: has a time and memory, no bounds. `plan`: its address, where a point has a page.
    `valley_s`: the shortest and the longest step within the valley, null without one.
    """
    plans = list(plan_set.plans)
    points = {_key(plan.strategy.model_dump(), plan.num_npus_used): _of_plan(plan) for plan in plans}
    if plans:  # the one field of a PlanSet of earlier versions that tells of more
        for point in plan_set.pareto:
            points.setdefault(_key(point.strategy.model_dump(), point.num_npus), _of_pareto(point, plans[0], lang))
    for axes, numbers in _solved(plan_set.solved):
        points.setdefault(_key(axes, numbers.num_npus), {"solved": True, **_point(axes, numbers, lang)})
    for each in bounds.sample:
        numbers = Numbers(each.dp, each.num_npus, each.step_time_s, each.peak_memory_gib, each.mfu)
        points.setdefault(_key(each.axes, each.num_npus), _point(each.axes, numbers, lang))
    fastest, valley = plan_set.fastest, plan_set.valley
    best_s = fastest.step_time_s if fastest is not None else min((p.step_time_s for p in plans), default=None)
    words = {name.removeprefix(WORDS): text for name, text in texts(lang).items() if name.startswith(WORDS)}
    return {
        "words": words | picture_words(lang),
        "total": bounds.total,
        "valley_s": None if valley is None or best_s is None else [best_s, best_s * (1.0 + valley.within)],
        "points": list(points.values()),
    }


def picture_words(lang: Language) -> dict[str, str]:
    """Titles of what a point shows."""
    return {name: title(field_name(lang, name)) for name in ("plan", *COLOURS)}


def _solved(solved: SolvedStrategies) -> Iterator[tuple[dict[str, int | str], Numbers]]:
    names = list(solved.axes)
    columns = (solved.dp, solved.num_npus, solved.step_time_s, solved.peak_memory_gib, solved.mfu)
    numbers = map(Numbers, *columns)
    for values, each in zip(zip(*solved.axes.values(), strict=True), numbers, strict=True):
        yield {name: value for name, value in zip(names, values, strict=True) if value is not None}, each


def _key(axes: Mapping[str, Any], num_npus: int) -> tuple[int | str, ...]:
    dispatcher = str(axes.get("moe_dispatcher") or USUAL_DISPATCHER).removesuffix("_seq")
    algorithm = axes.get("cp_algo") if axes.get("cp", 1) > 1 else None
    return (*(axes.get(name) or 1 for name in (*AXES, "etp")), axes["schedule"], dispatcher, algorithm or "", num_npus)


def _of_plan(plan: Plan) -> dict[str, Any]:
    return {
        "name": degrees(plan.strategy),
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
    numbers = Numbers(strategy.dp or 1, point.num_npus, point.step_time_s, point.peak_memory_gib, mfu)
    return {"solved": True, **_point(axes, numbers, lang)}


def _point(axes: Mapping[str, int | str], numbers: Numbers, lang: Language) -> dict[str, Any]:
    degrees_of: dict[str, Any] = {**axes, "dp": numbers.dp}
    layout = short_degrees(degrees_of)
    micro_batch, dispatcher = axes["micro_batch_size"], axes.get("moe_dispatcher", USUAL_DISPATCHER)
    words = [
        layout if micro_batch == 1 else f"{layout} MBS{micro_batch}",
        schedule(str(axes["schedule"])).title_in(lang),
        *([str(dispatcher)] if dispatcher != USUAL_DISPATCHER else []),
        *([str(axes["cp_algo"])] if "cp_algo" in axes else []),
    ]
    return {
        "name": ", ".join(words),
        "ask": ",".join(f"{name}={value}" for name, value in axes.items()),
        "step_time_s": _short(numbers.step_time_s),
        "peak_memory_gib": _short(numbers.peak_memory_gib),
        "num_npus": numbers.num_npus,
        "mfu_pct": _short(100.0 * numbers.mfu),
        **{name: axes.get(name, 1) for name in AXES},
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")
