"""Texts of the ranking: its criterion, plans that are faster by prediction, the plans near the best, and the proof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language, text_of
from autodeploy.reports.run_facts import looks_like, what_differs
from autodeploy.reports.tables import Table
from autodeploy.reports.wording import (
    bracketed,
    chance,
    degrees,
    percent,
    reference_name,
    report_text,
    schedule_title,
    seconds,
    titled,
    valued,
)

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Bet, BoxNumber, Fastest, ParetoPoint, Plan, PlanSet, RiskRanking

MOST_BETS = 3
MOST_POINTS = 4
EXPLAINED = frozenset({"public recipe", "your script", "proven features"})


def recommendation_lines(plan_set: PlanSet, lang: Language) -> list[str]:
    """The sentences that a reader of the ranking needs, those about every time first."""
    first = (of(plan_set, lang) for of in (rescaled_line, reference_line, trial_line, fastest_line))
    last = (of(plan_set, lang) for of in (valley_line, risk_line))
    lines = (*first, *counterfactual_lines(plan_set, lang), *last)
    return [line for line in lines if line is not None]


def counterfactual_lines(plan_set: PlanSet, lang: Language) -> list[str]:
    """Costs of a step of the axes that matter most: `EP32 instead of EP8: +98.0 %, adds 3.10 s of EP`."""
    comma = report_text(lang, "comma")
    return [
        titled(
            lang,
            in_language(each.change, lang),
            comma.join(in_language(text, lang) for text in (each.effect, each.why)),
        )
        for each in plan_set.counterfactuals
    ]


def rescaled_line(rescaled: PlanSet | Plan, lang: Language) -> str | None:
    """By what all times are multiplied, and the measured run that this rests on; None where they are not."""
    if rescaled.rescaled is None:
        return None
    return report_text(
        lang,
        "rescaled",
        ratio=f"{rescaled.rescaled.ratio:.3g}",
        run=rescaled.rescaled.run,
        measured=seconds(rescaled.rescaled.measured_step_time_s),
        predicted=seconds(rescaled.rescaled.predicted_step_time_s),
        source=rescaled.rescaled.source,
    )


def reference_line(plan_set: PlanSet, lang: Language) -> str | None:
    """Origin of the plan for comparison; None where nobody published it."""
    reference = plan_set.reference
    if reference is None or reference.label not in EXPLAINED or not reference.explanation:
        return None
    name = reference_name(reference.label, lang)
    return titled(lang, name, in_language(reference.explanation, lang))


def other_fastest(plan_set: PlanSet) -> Fastest | None:
    """The plan that is fastest by prediction, where it is not the recommended one."""
    fastest = plan_set.fastest
    if fastest is None or not plan_set.plans or fastest.plan_id == plan_set.plans[0].plan_id:
        return None
    return fastest


def fastest_line(plan_set: PlanSet, lang: Language) -> str | None:
    """The plan that is fastest by prediction and what it depends on; None where that is the recommended one."""
    fastest = other_fastest(plan_set)
    if fastest is None:
        return None
    text = faster_by(fastest, plan_set.plans[0], lang)
    if not fastest.bets:
        return text
    bets = [bet_in_words(bet, lang) for bet in fastest.bets[:MOST_BETS]]
    if len(fastest.bets) > MOST_BETS:
        bets.append(text_of(lang, "common.more", count=len(fastest.bets) - MOST_BETS))
    return text + report_text(lang, "bets_on", bets=report_text(lang, "semicolon").join(bets))


def faster_by(fastest: Fastest, best: Plan, lang: Language) -> str:
    """`TP4 PP8 VPP2 EP64 DP24 (#3) is 3.1 % faster by prediction (59.3 s, P(fits) 71 %)`."""
    layout = degrees(fastest.strategy) + (f" (#{fastest.rank})" if fastest.rank is not None else "")
    if looks_like(fastest.strategy, best.strategy):
        layout = bracketed(lang, layout, what_differs(fastest.strategy, best.strategy, lang))
    gain = best.step_time_s / fastest.step_time_s - 1.0
    key = "faster_on_paper" if gain > 0.0 else "first_on_paper"  # another objective than the step time
    times = {"step": seconds(fastest.step_time_s), "pct": percent(gain)}
    return report_text(lang, key, layout=layout, chance=chance(fastest.p_fits), **times)


def bet_in_words(bet: Bet, lang: Language) -> str:
    """Condition that a plan rests on, an uncertain number by its name, and the cost where it does not hold."""
    number = bet.kind == "number"
    text = report_text(lang, "bet_number", name=bet.name) if number else in_language(bet.text, lang)
    if bet.cost_pct is None:
        return text
    return text + report_text(lang, "bet_cost", pct=f"{bet.cost_pct:.1f}")


def trial_line(plan_set: PlanSet, lang: Language) -> str | None:
    """That the first plan may not start, how to try it, and what to launch then; None where it surely enough does."""
    instead = None if plan_set.risk is None else plan_set.risk.instead
    other = next((plan for plan in plan_set.plans if plan.plan_id == instead), None)
    if other is None:
        return None
    first = plan_set.plans[0]
    starts = first.p_fits if first.p_starts is None else first.p_starts
    return report_text(
        lang,
        "try_first",
        starts=chance(1.0 if starts is None else starts),
        command=f"autodeploy export {first.plan_id} --to {plan_set.search.spec['search']['target']}",
        rank=other.rank,
        step=seconds(other.step_time_s),
        chance=chance(1.0 if other.p_fits is None else other.p_fits),
    )


def valley_line(plan_set: PlanSet, lang: Language) -> str | None:
    """Number of layouts that are nearly as fast, what they share and which of them is proven best."""
    valley = plan_set.valley
    if valley is None:
        return None
    within = f"{100 * valley.within:g}"
    if valley.layouts < 2:
        return report_text(lang, "valley_alone", within=within)
    text = report_text(lang, "valley", layouts=f"{valley.layouts:,}", within=within)
    if valley.shared:
        comma = report_text(lang, "comma")
        shared = comma.join(_shared(axis, value, lang) for axis, value in valley.shared.items())
        text += comma + report_text(lang, "valley_shared", shared=shared)
    if valley.fewest_unproven is not None:
        ranks = {plan.plan_id: f"#{plan.rank}" for plan in plan_set.plans}  # of those that are shown
        which = ranks.get(valley.fewest_unproven, valley.fewest_unproven)
        text += report_text(lang, "semicolon") + report_text(lang, "fewest_unproven", plan=which)
    return text


def _shared(axis: str, value: int | str, lang: Language) -> str:
    if axis == "schedule":
        return schedule_title(str(value), lang)
    if axis == "micro_batch_size":
        return valued(lang, axis, value)
    return f"{axis.upper()}{value}" if isinstance(value, int) else str(value)


def risk_line(plan_set: PlanSet, lang: Language) -> str | None:
    """Criterion of the ranking: over how many draws of how many numbers, and how much of unproven gains counts."""
    risk = plan_set.risk
    if risk is None:
        return None
    if risk.risk == "neutral":
        return report_text(lang, "ranked_neutral")
    facts = {"compared": f"{risk.compared:,}", "chance": chance(risk.least_p_fits)}
    if risk.draws:
        facts |= {"draws": f"{risk.draws:,}", "numbers": f"{len(risk.box):,}"}
    if risk.failed_launch_hours is None or risk.restart_hours is None or risk.run_days is None:
        text = report_text(lang, "ranked_averse", **facts)
    else:
        facts |= {
            "failed": f"{risk.failed_launch_hours:g}",
            "restart": f"{risk.restart_hours:g}",
            "days": f"{risk.run_days:,.0f}" if risk.run_days >= 10 else f"{risk.run_days:.2g}",
        }
        text = report_text(lang, "ranked_by_cost" if risk.draws else "ranked_as_predicted", **facts)
    if risk.proven_share is not None:
        share = percent(risk.proven_share, 0)
        if risk.proven_share_sigma is not None:
            share += f" ± {percent(risk.proven_share_sigma, 0)}"
        text += report_text(lang, "semicolon") + report_text(lang, "proven_share", share=share)
    return text


def pareto_line(plan_set: PlanSet, lang: Language) -> str | None:
    """The fastest plan and what takes less memory or fewer cards than all faster ones; None where nothing does."""
    points = plan_set.pareto
    if len(points) < 2:
        return None
    same_cards = len({point.num_npus for point in points}) == 1
    shown = points if len(points) <= MOST_POINTS else (*points[: MOST_POINTS - 1], points[-1])
    points_shown = [_point(point, lang, same_cards=same_cards) for point in shown]
    points_shown += ["..."] if len(shown) < len(points) else []
    return titled(
        lang, report_text(lang, "pareto", count=len(points)), report_text(lang, "semicolon").join(points_shown)
    )


def _point(point: ParetoPoint, lang: Language, *, same_cards: bool) -> str:
    name = degrees(point.strategy, with_dp=False) if point.rank is None else f"#{point.rank}"
    text = f"{name} {seconds(point.step_time_s)} s {point.peak_memory_gib:.1f} GiB"
    return text if same_cards else f"{text} {report_text(lang, 'cards', count=f'{point.num_npus:,}')}"


def box_table(risk: RiskRanking | None, lang: Language) -> Table:
    """The uncertain numbers, the most influential first: factors at the 10th and 90th percentile, and their basis."""
    numbers = () if risk is None else risk.box
    rows = [
        [
            each.name,
            _end(each.low, each),
            _end(each.high, each),
            f"{percent(each.influence)} %" if each.influence >= 0.0005 else "< 0.1 %",
            f"{percent(each.regret_pct / 100.0)} %" if each.regret_pct else "",
            " ".join(f"{name} {value}" for name, value in each.instead.items()) or report_text(lang, "stays"),
            report_text(lang, each.settled_by) if each.settled_by else "",
            in_language(each.meaning, lang) + report_text(lang, "semicolon") + in_language(each.basis, lang),
        ]
        for each in sorted(numbers, key=lambda each: (-each.regret_pct, -each.influence, each.name))
    ]
    titles = report_text.each(lang, "number", "low", "high", "influence", "loses", "then_best", "cheapest", "basis")
    return Table(titles, rows, {1, 2, 3, 4})


MOST_IGNORANCES = 2


def ignorance_lines(risk: RiskRanking | None, lang: Language) -> list[str]:
    """The numbers whose ignorance may cost the recommended plan most, each with the cheapest measurement of it."""
    priced = [each for each in (() if risk is None else risk.box) if each.settled_by is not None]
    dearest = sorted(priced, key=lambda each: (-each.regret_pct, each.name))[:MOST_IGNORANCES]
    return [
        report_text(
            lang,
            "dearest",
            number=in_language(each.meaning, lang),
            cost=percent(each.regret_pct / 100.0),
            how=report_text(lang, str(each.settled_by)),
        )
        for each in dearest
    ]


def _end(value: float, number: BoxNumber) -> str:
    """A factor; of a number that is shifted, the shift with its sign."""
    return f"{value:+.3g}" if number.low < 0.0 else f"{value:.3g}"
