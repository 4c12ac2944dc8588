"""The page of one search, worked out of its PlanSet, and the picture of all its strategies."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from api.http.languages import texts, title
from api.ui import formats
from autodeploy.reports import figures
from autodeploy.reports.figures.layout import MEMORY_COLOURS, PART_COLOURS
from autodeploy.reports.plan_report import (
    axes_in_words,
    count_on_line,
    evidence_line,
    experts_line,
    header,
    lane_lines,
    losses,
    measured_mfu,
    menu_table,
    unproven,
    unproven_names,
)
from autodeploy.reports.recommendation import faster_by, other_fastest, rescaled_line, risk_line, valley_line
from autodeploy.reports.run_facts import generation_cell, rl_lines, spare_table
from autodeploy.reports.wording import (
    convention_words,
    degrees,
    field_name,
    is_reference,
    memory_names,
    part_names,
    phase_name,
    plan_label,
    reference_name,
    short_degrees,
    swap_names,
    with_records,
)
from autodeploy.space.rules import load_rules
from autodeploy.specs.software import stack_for
from autodeploy.specs.spec import spec_of, vendor_of
from autodeploy.stack.software import NOTHING, shipped_stacks
from cost_models.schedule import schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from autodeploy.messages import Language
    from autodeploy.reports.figures.layout import Figure
    from autodeploy.specs.answers import StrategyBounds
    from autodeploy.specs.planset import Breakdown, ParetoPoint, Plan, PlanSet, SolvedStrategies
    from autodeploy.specs.strategy import Recompute, Strategy


MAX_SAMPLED_STRATEGIES = 3000
"""Strategies of a sample: enough to see where they lie, and few enough to pan."""
NUMBERS = ("step_time_s", "peak_memory_gib", "mfu_pct", "num_npus")
AXES = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
COLOURS = (*NUMBERS, *AXES)
USUAL_DISPATCHER = "alltoall"
WORDS = "search.picture_"
FILTERED = ("tp", "pp", "cp", "ep")


class Numbers(NamedTuple):
    """Numbers of a point beside its axes: replicas, cards, seconds of a step, GiB on the card and MFU as a share."""

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


# What pages say of a plan of reinforcement learning, beyond one of pre-training.
def rl_context(plan: Plan | None, lang: Language) -> dict[str, Any]:
    """Context of the template of its card; nothing of other plans."""
    if plan is None or plan.rl is None:
        return {"rl": None}
    return {"rl": plan.rl, "rl_told": rl_lines(plan, lang), "rl_phase": partial(phase_name, lang=lang)}


def rl_charts(plan: Plan | None, lang: Language) -> dict[str, Figure]:
    """Its pictures, by the id of the element that shows them."""
    if plan is None or plan.rl is None:
        return {}
    return {
        "chart-phases": figures.phases_timeline(plan.rl, lang),
        "chart-batch": figures.batch_over_time(plan.rl, lang),
    }


CLEARLY_FASTER = 1.05
REJECTED = "rejected:"


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a step or one fate of the candidates: its size and where it stands in the bar, both of 1."""

    key: str
    name: str
    amount: float
    share: float
    start: float

    @property
    def rule(self) -> bool:
        """Whether this is what a legality rule rejected."""
        return self.key.startswith(REJECTED)


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the ranked table. `name`: of a plan for comparison, else its rank."""

    plan: Plan
    name: str
    layout: str
    generation: str
    schedule: str
    recompute: str
    swap: str
    slower: float | None
    reference: bool


def step_shares(breakdown: Breakdown, step_time_s: float, lang: Language) -> tuple[Share, ...]:
    """The parts of a step that are not zero, in the order of the pictures; none for a step that takes no time."""
    shares: list[Share] = []
    start = 0.0
    for field in PART_COLOURS:
        part_s = float(getattr(breakdown, field))
        if part_s > 0 and step_time_s > 0:
            shares.append(Share(field, part_names(lang)[field], part_s, part_s / step_time_s, start))
            start += part_s / step_time_s
    return tuple(shares)


def recompute_words(recompute: Recompute, lang: Language = "en") -> str:
    """`full`, `mla up proj, activation` or a dash."""
    if recompute.granularity == "none":
        return "–"
    named = ", ".join(module.replace("_", " ") for module in recompute.modules)
    named = named or texts(lang)[f"granularity.{recompute.granularity}"]
    return named if recompute.num_layers is None else f"{named} × {recompute.num_layers}"


def rows(plan_set: PlanSet, lang: Language = "en") -> tuple[Row, ...]:
    """The ranked plans and the one for comparison, in the order of recommendation."""
    plans = shown_plans(plan_set)
    best_s = plan_set.plans[0].step_time_s if plan_set.plans else None
    return tuple(
        Row(
            plan=plan,
            name=reference_name(plan.label, lang) if is_reference(plan) else str(plan.rank),
            layout=degrees(plan.strategy),
            generation="" if plan.strategy.rl is None else generation_cell(plan.strategy),
            schedule=schedule(plan.strategy.schedule).title_in(lang),
            recompute=recompute_words(plan.strategy.recompute, lang),
            swap=", ".join(name.replace("_", " ") for name in swap_names(plan.strategy)) or "–",
            slower=None if not best_s or plan is plan_set.plans[0] else plan.step_time_s / best_s - 1,
            reference=is_reference(plan),
        )
        for plan in plans
    )


def method_words(row: Row, lang: Language) -> str:
    """Schedule, micro batch and memory choices of a plan on one line."""
    words = texts(lang)
    batch = f"{words['micro_batch_size']} {row.plan.strategy.micro_batch_size}"
    return f"{row.schedule} · {batch} · {words['recompute']} {row.recompute} · {words['swap']} {row.swap}"


def axes(strategy: Strategy, lang: Language) -> tuple[tuple[str, int, str], ...]:
    """The parallel degrees above one, and TP always, with what they mean: short name, degree, words."""
    words, degrees = texts(lang), []
    for name in ("tp", "pp", "vpp", "cp", "ep", "dp"):
        degree = int(getattr(strategy, name) or 1)
        if degree > 1 or name == "tp":
            degrees.append((name.upper(), degree, words[f"axis.{name}"]))
    return tuple(degrees)


def times_faster(plan_set: PlanSet) -> float | None:
    """Steps of the best plan in the time of one of the reference; None where it is not clearly slower.

    Nothing is called faster that is predicted slower than a measured run of the same model and cluster.
    """
    if not plan_set.plans or plan_set.reference is None:
        return None
    best_s = plan_set.plans[0].step_time_s
    if plan_set.rescaled is not None and best_s > plan_set.rescaled.measured_step_time_s:
        return None
    times = plan_set.reference.step_time_s / best_s
    return times if times >= CLEARLY_FASTER else None


def shown_plans(plan_set: PlanSet) -> tuple[Plan, ...]:
    """The ranked plans, then the reference if there is one."""
    return plan_set.plans + (() if plan_set.reference is None else (plan_set.reference,))


def fates(plan_set: PlanSet) -> tuple[Share, ...]:
    """Numbers of candidates by outcome; rules are keyed `rejected:<rule>`, the most frequent first."""
    counts = plan_set.counts
    amounts = [(REJECTED + rule, n) for rule, n in sorted(counts.rejected.items(), key=lambda r: (-r[1], r[0]))]
    amounts += [("too_big", counts.too_big), ("pruned", counts.pruned), ("solved", counts.solved)]
    total = max(1, counts.enumerated, sum(n for _, n in amounts))
    shares: list[Share] = []
    start = 0.0
    for key, n in amounts:
        if n:
            shares.append(Share(key, key.removeprefix(REJECTED), n, n / total, start))
            start += n / total
    return tuple(shares)


def fate_kinds(fates: tuple[Share, ...], lang: Language) -> tuple[Share, ...]:
    """The fates by kind: what rules rejected is one, named `rejected`."""
    words = texts(lang)
    illegal = [fate for fate in fates if fate.rule]
    kinds = [fate for fate in fates if not fate.rule]
    if illegal:
        share = sum(fate.share for fate in illegal)
        kinds.insert(0, Share("rejected", "", sum(fate.amount for fate in illegal), share, 0.0))
    return tuple(replace(kind, name=words[f"label.{kind.key}"]) for kind in kinds)


def dense_layers(model: dict[str, Any]) -> frozenset[int]:
    """Numbers, from 0, of the layers without routed experts."""
    total = int(model["num_hidden_layers"])
    if not model.get("n_routed_experts"):
        return frozenset(range(total))
    leading = range(min(total, int(model.get("first_k_dense_replace") or 0)))
    return frozenset(leading) | frozenset(int(layer) for layer in model.get("mlp_only_layers") or ())


def charts(plan_set: PlanSet, lang: Language) -> dict[str, Any]:
    """The figures of the page as plotly.js takes them, by the id of the element that shows them."""
    if not plan_set.plans:
        return {}
    best = plan_set.plans[0]
    plans = shown_plans(plan_set)
    dense = dense_layers(plan_set.search.spec["model"])
    drawn = {
        "chart-time": figures.step_time_breakdown(plans, lang),
        "chart-memory": figures.stage_memory(best, lang),
        "chart-pareto": figures.time_and_memory(plans, lang),
        "chart-layers": figures.layers_on_stages(best, dense, lang),
        **rl_charts(best, lang),
    }
    return {name: figures.figure_json(figure) for name, figure in drawn.items()}


def stage_shares(plan: Plan, lang: Language) -> list[tuple[str, tuple[Share, ...]]]:
    """Memory of each stage by kind, as shares of the card's limit or of the fullest stage where that is more."""
    top = max([plan.memory_limit_gib, *(stage.total_gib for stage in plan.stages)])
    bars = []
    for number, stage in enumerate(plan.stages):
        shares, start = [], 0.0
        for kind in MEMORY_COLOURS:
            gib = float(getattr(stage.memory_gib, kind))
            if gib > 0:
                shares.append(Share(kind, memory_names(lang)[kind], gib, gib / top, start))
                start += gib / top
        bars.append((f"{texts(lang)['stage']} {number} · {formats.gib(stage.total_gib)}", tuple(shares)))
    return bars


def time_shares(plan_set: PlanSet, lang: Language) -> list[tuple[str, tuple[Share, ...]]]:
    """The parts of every plan's step, all to the scale of the longest."""
    plans = shown_plans(plan_set)
    longest_s = max((plan.step_time_s for plan in plans), default=0.0)
    return [
        (
            f"{plan_label(plan, lang)} · {formats.seconds(plan.step_time_s)}",
            step_shares(plan.breakdown, longest_s, lang),
        )
        for plan in plans
    ]


def search_context(plan_set: PlanSet, lang: Language, shown: Plan | None = None) -> dict[str, Any]:
    """Everything that the template of a finished search reads.

    shown : the plan that is told in detail; the best unless given.
    """
    spec = plan_set.search.spec
    best = shown or (plan_set.plans[0] if plan_set.plans else None)
    ranked = rows(plan_set, lang)
    own = next((row for row in ranked if row.plan is best), None)
    shares = step_shares(best.breakdown, best.step_time_s, lang) if best else ()
    became = fates(plan_set)
    asked = spec_of(plan_set.search)
    heading, work = header(asked, best, lang)
    software = stack_for(asked.software, asked.search.target, vendor_of(asked.cluster.profile) or "")
    return {
        "plan_set": plan_set,
        "spec": spec,
        "model": spec["model"],
        "training": spec["training"],
        "heading": heading,
        "work": work,
        "software": None if software is NOTHING else software,
        "software_ships": software.name in shipped_stacks(),
        **rl_context(best, lang),
        "best": best,
        "rows": ranked,
        "method": method_words(own, lang) if own else "",
        "time_bars": time_shares(plan_set, lang),
        "stage_bars": stage_shares(best, lang) if best else [],
        "columns": columns(plan_set),
        "spares": spare_table(plan_set, lang),
        "shares": shares,
        "fates": became,
        "fate_kinds": fate_kinds(became, lang),
        "rule_texts": {rule.name: rule.text for rule in load_rules()},
        "parts": part_names(lang),
        "losses_of": lambda plan: losses(plan, lang),
        "lane_lines": lambda plan: lane_lines(plan, lang),
        "menu_of": lambda plan: menu_table(plan, lang),
        "measured_mfu": measured_mfu(best, lang) if best else None,
        "count_on": count_on_line(best, lang) if best else None,
        "experts": experts_line(best, lang) if best else None,
        "shown_parts": [f for f in PART_COLOURS if any(getattr(p.breakdown, f) > 0 for p in shown_plans(plan_set))],
        "memory_names": {name: memory_names(lang)[name] for name in MEMORY_COLOURS},
        "charts": charts(plan_set, lang),
        "layout": degrees,
        "axes": lambda strategy: axes(strategy, lang),
        "axes_in_words": axes_in_words,
        "convention_words": convention_words,
        "with_records": with_records,
        "times_faster": times_faster(plan_set) if best and best is plan_set.plans[0] else None,
        **recommendation(plan_set, lang),
        "bound_words": bound_words(plan_set),
        "spec_text": spec_text(spec),
        "bar_colour": lambda share: share.key,
        "fate_colour": lambda share: "fate-" + share.key.partition(":")[0],
        "picture_numbers": NUMBERS,
        "picture_colours": COLOURS,
        "picture_filters": FILTERED,
        "picture_words": picture_words(lang),
        "running": plan_set.status in {"queued", "running"},
    }


# Columns of the ranked table: the key of the title and its class. Some are left out where no plan has their value.
_COLUMNS = {
    **dict.fromkeys(("rank", "layout", "schedule", "recompute"), ""),
    **dict.fromkeys(("search.s_per_step_interval", "label.tokens_per_s_per_npu", "label.gib", "p_fits"), "n"),
    "search.evidence": "spare",  # a narrow page leaves it to the details
    **dict.fromkeys(("regret", "label.versus_best"), "n"),
}


def columns(plan_set: PlanSet) -> dict[str, str]:
    """Titles of the ranked table with their classes; without those of which no plan says anything."""
    plans = plan_set.plans
    absent = {
        "p_fits": all(plan.p_fits is None for plan in plans),
        "search.evidence": not any(plan.evidence for plan in plans),
        "regret": all(plan.regret_p80_pct is None for plan in plans),
    }
    return {key: kind for key, kind in _COLUMNS.items() if not absent.get(key)}


def expected(plan: Plan) -> str | None:
    """Expectation of a step, where it reads otherwise than the prediction."""
    if plan.expected_step_time_s is None:
        return None
    text = formats.seconds(plan.expected_step_time_s)
    return None if text == formats.seconds(plan.step_time_s) else text


def recommendation(plan_set: PlanSet, lang: Language) -> dict[str, Any]:
    """Basis of the ranking, plans that are faster by prediction, and the comparison of the best."""
    best = plan_set.plans[0] if plan_set.plans else None
    fastest, reference = other_fastest(plan_set), plan_set.reference
    return {
        "rescaled": rescaled_line(plan_set, lang),
        "fastest": fastest,
        "faster_by": faster_by(fastest, best, lang) if fastest and best else "",
        "also_fastest": plan_set.fastest is not None and fastest is None and plan_set.risk is not None,
        "valley": valley_line(plan_set, lang),
        "ranked_by": risk_line(plan_set, lang),
        "least_p_fits": plan_set.risk.least_p_fits if plan_set.risk else 0.0,
        "evidence": evidence_line(best, lang) if best else None,
        "evidence_of": lambda plan: evidence_line(plan, lang),
        "unproven": unproven,
        "unproven_names": lambda plan: unproven_names(plan, lang),
        "expected": expected(best) if best else None,
        "expected_of": expected,
        "reference": reference_name(reference.label, lang) if reference else "",
    }


def bound_words(plan_set: PlanSet) -> str:
    """The bound in the unit of the objective."""
    optimality = plan_set.optimality
    match optimality.objective:
        case "step_time":
            return formats.seconds(optimality.bound)
        case "peak_memory":
            return formats.gib(optimality.bound)
        case "time_to_train":
            return f"{formats.quantity(optimality.bound)} d"
    return formats.quantity(optimality.bound)


def spec_text(spec: dict[str, Any]) -> str:
    """The spec as readable JSON, what is absent left out."""
    return json.dumps(_without_absent(spec), indent=2, ensure_ascii=False)


def _without_absent(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_absent(v) for k, v in value.items() if v is not None and v != {} and v != []}
    return [_without_absent(item) for item in value] if isinstance(value, list | tuple) else value
