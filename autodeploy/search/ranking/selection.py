"""Choice and order of the plans of an answer, and its statements on the ranking as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autodeploy.calibration.evidence import realised_share
from autodeploy.calibration.uncertain_numbers import SETTLED_BY, cause_of
from autodeploy.messages import Message
from autodeploy.search.ranking.advice import DRAWS
from autodeploy.search.ranking.diversity import ShownPlan, different, outline, valley
from autodeploy.search.ranking.expected_cost import DAY_S, HOUR_S
from autodeploy.search.ranking.regret import DEFAULT_PRICE
from autodeploy.search.ranking.uncertainty import LEAST_P_FITS
from autodeploy.search.ranking.unproven import unproven_in
from autodeploy.specs.planset import Bet, BoxNumber, Fastest, RiskRanking, SolvedStrategies
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from autodeploy.calibration.uncertain_numbers import Uncertain
    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.search.ranking.advice import Advice
    from autodeploy.search.ranking.expected_cost import RiskPrice
    from autodeploy.search.ranking.regret import Considered, RiskAdvice
    from autodeploy.specs.planset import Plan, Valley
    from autodeploy.specs.search import SearchSpec
    from hardware_profiles.profile import Profile


# The plan that is fastest by the predicted times alone, and what it depends on against the recommended one.
MIN_TOLD_COST: Final = 0.01
"""Share of the step that a number costs the one plan more than the other, from which it is a bet."""


def bets_of(advice: RiskAdvice) -> tuple[Bet, ...]:
    """Conditions that the fastest plan rests on, and the cost of each where it does not hold; the dearest first."""
    fastest, chosen = advice.fastest, advice.weighed[0]
    bets = [*_unproven_bets(fastest, chosen), *_memory_bet(advice, fastest)]
    if fastest.row != chosen.row:
        bets += _number_bets(advice, fastest, chosen)
    return tuple(sorted(bets, key=lambda bet: (-(bet.cost_pct or 0.0), bet.name)))


def _unproven_bets(fastest: Considered, chosen: Considered) -> list[Bet]:
    """Degrees and features that no run has, and the recommended plan does without."""
    names = sorted(fastest.unproven - chosen.unproven) if fastest.row != chosen.row else sorted(fastest.unproven)
    return [
        Bet(kind="unproven", name=name, text=Message("ranking.no_run_has", what=_worded(fastest, name)))
        for name in names
    ]


def _worded(weighed: Considered, name: str) -> str:
    axes = weighed.axes
    return f"{name} {axes[name]}" if name in axes else name


def _memory_bet(advice: RiskAdvice, fastest: Considered) -> list[Bet]:
    """That it fits at all; where it does not, the next plan that does takes so much longer."""
    if fastest.p_fits >= max(LEAST_P_FITS, advice.least_p_fits):
        return []
    surer = (each for each in advice.weighed if each.regret is not None and each.p_fits > fastest.p_fits)
    remedy = next(surer, None)
    cost = None
    if remedy is not None:
        cost = round(100.0 * (remedy.step_s / fastest.step_s - 1.0), 3)
    return [Bet(kind="memory", name="memory", text=Message("ranking.fitting"), cost_pct=cost)]


def _number_bets(advice: RiskAdvice, fastest: Considered, chosen: Considered) -> list[Bet]:
    """Numbers that at one end cost the fastest plan more than the recommended one."""
    answers = advice.responses
    bets = []
    for number, uncertain in enumerate(answers.box.numbers):
        costs = [
            float(np.expm1(side[fastest.row, number] - side[chosen.row, number]))
            for side in (answers.low, answers.high)
        ]
        cost = max(costs)
        if cost >= MIN_TOLD_COST:
            key = "ranking.low_end" if costs[0] >= costs[1] else "ranking.high_end"
            text = Message(key, number=uncertain.meaning)
            bets.append(Bet(kind="number", name=uncertain.name, text=text, cost_pct=round(100.0 * cost, 3)))
    return bets


# Every strategy that a search solved, in columns.
def solved_strategies(searched: SearchSpace, frontier: SearchState, ratio: float) -> SolvedStrategies:
    """Plans of each outer strategy that has one, in its own order.

    ratio : of a measured over its predicted step time, by which predictions are multiplied.
    """
    solved = frontier.found
    contexts = [searched.context_of(one.index) for one in solved]
    axes = [
        axes_asked(searched.candidates.axes_at(one.index), moe=context.model.is_moe)
        for one, context in zip(solved, contexts, strict=True)
    ]
    names = list(dict.fromkeys(name for row in axes for name in row))
    step_s = [ratio * one.step_s for one in solved]
    return SolvedStrategies(
        axes={name: tuple(row.get(name) for row in axes) for name in names},
        dp=tuple(int(searched.candidates.dp[one.index]) for one in solved),
        num_npus=tuple(context.num_npus for context in contexts),
        step_time_s=tuple(_short(seconds) for seconds in step_s),
        peak_memory_gib=tuple(_short(one.card_bytes / GIB) for one in solved),
        mfu=tuple(
            _short(mfu_of_a_second(context) / seconds) for context, seconds in zip(contexts, step_s, strict=True)
        ),
    )


def axes_asked(axes: dict[str, int | str | bool], *, moe: bool) -> dict[str, int | str]:
    """The axes of a candidate by which a question names it; without those that mean nothing for it."""
    names = ["tp", "pp", "vpp", "cp", "micro_batch_size", "schedule"]
    names += ["cp_algo"] if axes["cp"] != 1 else []
    names += ["ep", "etp", "moe_dispatcher"] if moe else []
    return {name: axes[name] for name in names}


def mfu_of_a_second(context: Context) -> float:
    """The MFU of a step that takes a second."""
    ranks = context.num_npus * context.machine.devices_per_npu
    tokens = context.global_batch * context.sample_tokens / ranks
    return context.mfu(tokens)


def _short(value: float) -> float:
    """Six digits: points of a picture, and thousands of them."""
    return float(f"{value:.6g}")


def objective_value(plan: Plan, objective: str) -> float:
    """Value that is minimised: the plan with the least comes first."""
    if objective == "tokens_per_s_per_npu":
        return -plan.tokens_per_s_per_npu
    if objective == "peak_memory":
        return plan.highest_gib
    if objective == "npu_hours":
        return plan.step_time_s * plan.num_npus_used
    if objective == "time_to_train" and plan.run is not None and plan.run.days is not None:
        return plan.run.days
    return plan.step_time_s


def weight_of(context: Context, objective: str) -> float:
    """Weight of a second of a plan's step in the objective: plans on fewer cards or of another batch are compared."""
    if objective == "tokens_per_s_per_npu":
        return context.num_npus / context.global_batch
    return float(context.num_npus) if objective == "npu_hours" else 1.0


def chosen(frontier: SearchState, advice: Advice | None, search: SearchSpec) -> tuple[list[Solved], list[Solved]]:
    """The plans of the answer in order of rank, and more of the search's best, which only the Pareto set needs.

    The fastest plan is among them, as the last where it is ranked behind, unless one that differs from it in placement
    and memory choices alone is. Where the first may not start, the plan that is launched then is the second.
    """
    if advice is None:
        best = sorted(frontier.best, key=lambda each: each.solution.step_s * weight_of(each.context, search.objective))
        order = frontier.best if search.objective == "peak_memory" else best
    else:
        order = [each.solved for each in advice.weighed]
    firsts: dict[Hashable, Solved] = {}
    for each in order:
        firsts.setdefault(each.placed, each)
    outline_of = id if search.distinct == "placements" else outline
    kept = different(list(firsts.values()), search.top_k, outline_of)
    if advice is not None and len(kept) > 1:
        fixed = 1
        if advice.else_launched is not None:
            instead, fixed = advice.else_launched.solved, 2
            others = [each for each in kept[1:] if outline_of(each) != outline_of(instead)]
            kept = [kept[0], instead, *others][: search.top_k]
        fastest = advice.fastest.solved
        if len(kept) > fixed and outline_of(fastest) not in {outline_of(each) for each in kept}:
            kept[-1] = fastest
    others = [each for each in frontier.best[: search.top_k] if all(each is not other for other in kept)]
    return kept, others


def weighed(plan: Plan, advice: Advice | None, solved: Solved, ratio: float) -> Plan:
    """A plan with how it stands in the ranking by risk; ratio: of measured times to predicted ones."""
    standing = None if advice is None else next((each for each in advice.weighed if each.solved is solved), None)
    if standing is None:
        return plan
    return plan.model_copy(
        update={
            "expected_step_time_s": ratio * standing.expected_s,
            "p_starts": standing.p_starts,
            "regret_p80_pct": None if standing.regret is None else 100.0 * standing.regret,
        }
    )


LEAST_REGRET: Final = 5e-4
"""Of a step: a number that costs less is no decision."""


@dataclass(frozen=True)
class Decision:
    """Price of not knowing one number: what the recommended plan costs at its worse end above the best plan there."""

    regret: float
    instead: dict[str, bool | int | str]


def decisions(advice: RiskAdvice) -> list[Decision | None]:
    """Of every number of the box; None where the recommended plan stays the best at both ends, or nearly.

    Among plans that fit surely enough. What the recommended plan costs as predicted, for its safety, is no number's.
    """
    answers, chosen = advice.responses, advice.weighed[0]
    ready = [each for each in advice.weighed if each.regret is not None] or [chosen]
    rows = [each.row for each in ready]
    nominal = answers.nominal[rows] + np.log(advice.weights[rows])
    mine = next((place for place, each in enumerate(ready) if each.row == chosen.row), 0)
    paid = float(nominal[mine] - nominal.min())
    made: list[Decision | None] = []
    for number in range(len(answers.box.numbers)):
        ends = [nominal + side[rows, number] for side in (answers.low, answers.high)]
        worse = max(ends, key=lambda end: float(end[mine] - end.min()))
        best = ready[int(worse.argmin())]
        regret = math.expm1(float(worse[mine] - worse.min())) - math.expm1(paid)
        if best.row == chosen.row or regret < LEAST_REGRET:
            made.append(None)
            continue
        axes = {name: value for name, value in best.axes.items() if value != chosen.axes.get(name)}
        said = {name: ("on" if value else "off") if isinstance(value, bool) else value for name, value in axes.items()}
        made.append(Decision(regret, {name: value for name, value in said.items() if isinstance(value, int | str)}))
    return made


def ranking_of(
    advice: RiskAdvice | None,
    profile: Profile | None,
    price: RiskPrice = DEFAULT_PRICE,
    instead: str | None = None,
) -> RiskRanking:
    """Criterion of the ranking. instead : the plan to launch where the first does not start."""
    if advice is None or profile is None:
        return RiskRanking(risk="neutral", compared=0, draws=0, least_p_fits=0.0)
    (share, sigma), box = realised_share(), advice.responses.box
    influences = advice.responses.influence([each.row for each in advice.weighed if each.regret is not None])
    numbers = tuple(
        BoxNumber(
            name=uncertain.name,
            meaning=uncertain.meaning,
            low=box.factors(uncertain)[0],
            high=box.factors(uncertain)[1],
            basis=uncertain.basis,
            influence=round(float(influence), 6),
            **_priced(decision, uncertain, profile),
        )
        for uncertain, influence, decision in zip(box.numbers, influences, decisions(advice), strict=True)
    )
    return RiskRanking(
        risk="averse",
        compared=len(advice.weighed),
        draws=DRAWS if advice.responses.drawn else 0,
        least_p_fits=advice.least_p_fits,
        proven_share=share,
        proven_share_sigma=sigma,
        failed_launch_hours=price.failed_launch_s / HOUR_S,
        restart_hours=price.restart_s / HOUR_S,
        run_days=price.run_s / DAY_S,
        instead=instead,
        box=numbers,
    )


def _priced(decision: Decision | None, number: Uncertain, profile: Profile) -> dict[str, Any]:
    if decision is None:
        return {}
    settled_by = SETTLED_BY[cause_of(number.multiplies, profile)]
    return {
        "regret_pct": round(100.0 * decision.regret, 3),
        "instead": decision.instead,
        "settled_by": settled_by,
    }


def fastest_of(first: Plan, ranked: Sequence[Plan], advice: RiskAdvice | None) -> Fastest:
    """The plan that is fastest by the predicted times, and what it depends on."""
    return Fastest(
        plan_id=first.plan_id,
        rank=next((plan.rank for plan in ranked if plan.plan_id == first.plan_id), None),
        step_time_s=first.step_time_s,
        p_fits=first.p_fits if first.p_fits is not None else 1.0,
        strategy=first.strategy,
        bets=() if advice is None else bets_of(advice),
    )


def valley_of(searched: SearchSpace, order: Sequence[Solved], ranked: Sequence[Plan]) -> Valley | None:
    """Plans near the fastest one."""
    if not ranked:
        return None
    plans = [
        ShownPlan(plan.plan_id, solved.index, plan.step_time_s, len(unproven_in(plan.evidence)))
        for plan, solved in zip(ranked, order, strict=True)
    ]
    return valley(searched.candidates, searched.swept.after_recompute_s, plans)
