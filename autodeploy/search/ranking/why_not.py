"""Why a strategy is not the plan: one that is given as a whole, or of which some axes are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import numpy as np

from autodeploy.costs.inputs.build_context import choice_context
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.messages import Message, joined
from autodeploy.search.branch_and_bound.search_space import legal_of_each
from autodeploy.search.ranking.explanation import explanation
from autodeploy.search.ranking.infeasible import missing_memory
from autodeploy.search.ranking.nearest_legal import conflict, rules_in_the_way
from autodeploy.space.candidates import CHOICES, concatenate
from autodeploy.space.feature_choice import choice_of
from autodeploy.space.rules import broken_rules, told, values_of, where_known
from autodeploy.space.space import log2_ratio
from autodeploy.specs.answers import WhyNot
from autodeploy.specs.derived_fields import SWITCHED
from autodeploy.specs.plan_details import LEAST_CHANCE
from autodeploy.specs.planset import NearestChange
from autodeploy.specs.search import Axis
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.ranking.one_strategy import Prepared
    from autodeploy.space.candidates import Candidates
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.planset import Counterfactual, Plan, PlanSet
    from autodeploy.specs.search import AxisValue, SearchSpec
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile


CLEARLY_FASTER = 0.999
"""A step above this share of another is as long."""


def explain_rejection(
    candidate: Candidates,
    context: Context,
    spec: Spec,
    *,
    nearest: Callable[[], tuple[NearestChange, ...]],
    estimated: Callable[[], Plan],
    placed: Callable[[], Plan | None],
    best: Callable[[], PlanSet],
) -> WhyNot:
    """Legality first, then memory, then time against the best plan.

    nearest, estimated, placed, best : asked only where the answer needs them. `placed` is the strategy with its layers,
    recomputation and swap chosen anew, None where nothing fits.
    """
    broken = broken_rules(candidate, context.facts, spec.search.target)[0]
    if broken:
        text = joined((rule.text for rule in told(broken, values_of(candidate, context.facts))), "semicolon")
        return WhyNot(
            rule=broken[0].name,
            message=Message("ranking.not_legal_for", target=spec.search.target, texts=text),
            broken_rules=tuple(rule.name for rule in broken),
            nearest=nearest(),
        )
    plan = estimated()
    if not plan.fits:
        return short_of_memory(plan, placed(), best)
    result = best()
    return timed(WhyNot(message=verdict(plan, result)), plan, result)


def verdict(plan: Plan, result: PlanSet) -> str:
    """Objections to a plan that is legal and fits, in words."""
    if not result.plans:
        return Message("ranking.nothing_to_compare")
    top = result.plans[0]
    if plan.strategy == top.strategy:
        return Message("ranking.legal_recommended")
    if plan.step_time_s > top.step_time_s:
        return Message("ranking.legal_slower", explanation=explanation(top, plan))
    if result.risk is None or result.risk.risk == "neutral":
        if plan.step_time_s < CLEARLY_FASTER * top.step_time_s:
            return Message("ranking.legal_faster")
        return Message("ranking.legal_as_fast")
    least = result.risk.least_p_fits
    if plan.p_fits is not None and plan.p_fits < least:
        key = "ranking.legal_fits_rarely"
        return Message(key, chance=100 * plan.p_fits, least=100 * least)
    return Message("ranking.legal_uncertain")


def timed(answer: WhyNot, plan: Plan, result: PlanSet) -> WhyNot:
    """The answer with what a step of the plan takes, against the recommended plan and the fastest by prediction."""
    best = result.plans[0].step_time_s if result.plans else None
    fastest = result.fastest.step_time_s if result.fastest is not None else None
    return answer.model_copy(
        update={
            "step_time_s": plan.step_time_s,
            "against_best_pct": _slower_pct(plan, best),
            "against_fastest_pct": _slower_pct(plan, fastest),
        }
    )


def short_of_memory(plan: Plan, placed: Plan | None, best: Callable[[], PlanSet]) -> WhyNot:
    """Memory that the strategy lacks as it stands, and its cost with the memory choices that make it fit."""
    stage = max(range(len(plan.stages)), key=lambda i: max(plan.stages[i].total_gib, plan.stages[i].start_gib or 0.0))
    needs = {"stage": stage, "needed": plan.highest_gib, "limit": plan.memory_limit_gib}
    lacking = Message("ranking.stage_cannot_fit" if placed is None else "ranking.stage_exceeds_memory", **needs)
    if (chance := plan.p_within(plan.memory_limit_gib)) >= LEAST_CHANCE:
        likely = Message("report.fits_by", chance=f"{100.0 * chance:.0f} %")
        lacking = joined((likely, lacking), "semicolon")
    if placed is None:
        return WhyNot(rule="memory", message=lacking)
    return timed(WhyNot(rule="memory", message=lacking, fitting=placed), placed, best())


def _slower_pct(plan: Plan, step_time_s: float | None) -> float | None:
    return None if step_time_s is None else 100.0 * (plan.step_time_s / step_time_s - 1.0)


# A strategy of which only some axes are given: the best plan that has them, or what rules out every one that does.
AXES: tuple[Axis, ...] = get_args(Axis)
SEARCH: Final[dict[str, Any]] = {"effort": "default", "top_k": 5, "gap": 0.05}
"""With fewer plans to compare, what is recommended of them is up to a tenth slower; where all degrees are given there
are few, and the spec's own search is as quick."""
OF_EXPERTS = ("etp", "moe_dispatcher")
DEGREES = frozenset({"tp", "pp", "vpp", "cp", "micro_batch_size", "schedule"})
LAYOUT = frozenset({"layers_per_stage", "recompute", "swap", "swap_per_stage"})
FEW_AXES: Final = 6


def is_whole(strategy: Strategy, *, moe: bool) -> bool:
    """Whether a strategy is judged as it stands: it gives every degree, and where layers are or what they keep.

    So is one of a schedule that no search looks at.
    """
    given = strategy.model_fields_set
    degrees = DEGREES | {"ep"} if moe else DEGREES
    return not kinds.schedule(strategy.schedule).searched or (degrees <= given and bool(LAYOUT & given))


def given_axes(strategy: Strategy, *, moe: bool) -> dict[Axis, AxisValue]:
    """The axes that a strategy gives."""
    names = [name for name in AXES if name in strategy.model_fields_set and (moe or name not in OF_EXPERTS)]
    return {name: getattr(strategy, name) for name in names if getattr(strategy, name) is not None}


@dataclass(frozen=True)
class PartialStrategy:
    """A question: the axes that are given of a strategy, and the spec that they are to be a plan of.

    ratio : of measured over predicted times, by which every time of an answer is multiplied.
    beside : the recommended strategy, if known: of many axes those that it has are not named. steps : of its axes, that
        its search took.
    """

    spec: Spec
    strategy: Strategy
    profile: Profile
    choice: FeatureChoice
    context: Context
    ratio: float = 1.0
    beside: Strategy | None = None
    steps: tuple[Counterfactual, ...] = ()

    @classmethod
    def of(cls, prepared: Prepared, strategy: Strategy, known: PlanSet | None) -> PartialStrategy:
        """The question of a strategy where these plans are known."""
        beside = known.plans[0].strategy if known is not None and known.plans else None
        return cls(
            prepared.spec,
            strategy,
            prepared.profile,
            prepared.choice,
            prepared.context,
            prepared.identity.ratio,
            beside,
            () if known is None else known.counterfactuals,
        )

    @property
    def axes(self) -> dict[Axis, AxisValue]:
        """The axes that are given."""
        return given_axes(self.strategy, moe=self.context.model.is_moe)

    @property
    def words(self) -> str:
        """`tp=8, pp=4, recompute=…`, in any language."""
        beside: dict[str, Any] = {} if self.beside is None else self.beside.model_dump()
        return shown_axes(self.axes, beside, sorted(self.strategy.model_fields_set - self.axes.keys()))

    @property
    def has_all_degrees(self) -> bool:
        """Whether no degree is left to choose; chunks and schedule may be: few of them go with the others."""
        return self.axes.keys() >= DEGREES - {"vpp", "schedule"}

    @property
    def stepped(self) -> Strategy | None:
        """The strategy of the step that gives just these axes, with what else is given; None where none is known."""
        axes = self.axes
        step = next((each.strategy for each in self.steps if each.axes == axes), None)
        return None if step is None else self.as_given(step) or step

    def pinned(self, axes: Mapping[Axis, AxisValue]) -> Spec:
        """The spec of a search among strategies with these axes; of the given ones it says nothing else."""
        search = self.spec.search
        switches = {name: "on" if getattr(self.strategy, name) else "off" for name in self._switched()}
        asked: dict[str, Any] = {
            **({} if axes.keys() >= DEGREES else SEARCH),
            "fix": {name: value for name, value in search.fix.items() if name not in self.axes} | dict(axes),
            "features": {**search.features, **switches},
        }
        for field in ("allow", "forbid"):
            asked[field] = {name: values for name, values in getattr(search, field).items() if name not in self.axes}
        training = self.spec.training.model_copy(update={"tokens": None})
        return self.spec.model_copy(
            update={"strategy": None, "run": None, "training": training, "search": search.model_copy(update=asked)}
        )

    def _switched(self) -> tuple[str, ...]:
        return tuple(name for name in SWITCHED if name in self.strategy.model_fields_set)

    def is_shared_by(self, known: PlanSet | None) -> bool:
        """Whether one of these plans has the axes that are given."""
        return known is not None and any(_has(each, self.axes) for each in known.plans)

    def as_given(self, strategy: Strategy) -> Strategy | None:
        """A strategy with what else is given, such as recomputation; None where it has that already."""
        names = self.strategy.model_fields_set - self.axes.keys()
        given = {name: getattr(self.strategy, name) for name in names if getattr(self.strategy, name) is not None}
        changes = {name: value for name, value in given.items() if value != getattr(strategy, name)}
        if "swap" in changes:
            changes.setdefault("swap_per_stage", None)
        return strategy.model_copy(update=changes) if changes else None


def shown_axes(axes: Mapping[Any, Any], beside: Mapping[str, Any], others: Iterable[str] = ()) -> str:
    """`tp=8, pp=4, recompute=…`; of many axes, as where a plan is changed, those that another plan has not."""
    different = {axis: value for axis, value in axes.items() if len(axes) <= FEW_AXES or beside.get(axis) != value}
    shown = [f"{axis}={value}" for axis, value in (different or axes).items()]
    words = ", ".join([*shown, *(f"{name}=…" for name in others)])
    return words if len(shown) == len(axes) else Message("ranking.other_axes_as_recommended", axes=words)


def explain_partly_given(
    asked: PartialStrategy,
    *,
    search: Callable[..., PlanSet],
    predicted: Callable[[Strategy], Plan],
    best: Callable[[], PlanSet] | None,
) -> WhyNot:
    """The best plan that has what is given against the recommended and the fastest one.

    It is that of a search with what is given fixed, or the first of the plans found with everything free that has
    it, whichever is to be expected faster; of a step of the recommended plan's axes, what the search found of it.

    search : `planner.plan`. predicted : the plan of a strategy as it stands. best : plans with everything free; None
        compares with nothing.
    """
    answer = search(asked.pinned(asked.axes), alone=True, first=asked.has_all_degrees)
    if not answer.plans:
        return ruled_out(asked, answer)
    result = answer if best is None else best()
    step = next((each for each in result.counterfactuals if each.axes == asked.axes), None)
    plan = _better(answer.plans[0], result, asked.axes) if step is None else predicted(step.strategy)
    whole = asked.as_given(plan.strategy)
    if whole is not None:
        stands = predicted(whole)
        if not stands.fits:
            return short_of_memory(stands, plan, lambda: result).model_copy(update={"completed": stands})
        plan = stands
    return timed(
        WhyNot(message=Message("common.at_best_with", axes=asked.words, verdict=verdict(plan, result)), completed=plan),
        plan,
        result,
    )


def _better(answered: Plan, result: PlanSet, axes: Mapping[Axis, AxisValue]) -> Plan:
    """This plan, or the first of the answer with these axes; always that where it is recommended for being safe."""
    ranked = next((each for each in result.plans if _has(each, axes)), None)
    if ranked is None:
        return answered
    averse = result.risk is not None and result.risk.risk == "averse"
    if averse and ranked.plan_id == result.plans[0].plan_id:
        return ranked
    least = result.risk.least_p_fits if result.risk is not None else 0.0

    def key(plan: Plan) -> tuple[bool, float]:
        expected = plan.step_time_s if plan.expected_step_time_s is None else plan.expected_step_time_s
        return plan.p_fits is not None and plan.p_fits < least, expected

    return min((ranked, answered), key=key)


def _has(plan: Plan, axes: Mapping[Axis, AxisValue]) -> bool:
    return all(getattr(plan.strategy, name) == value for name, value in axes.items())


def ruled_out(asked: PartialStrategy, answer: PlanSet) -> WhyNot:
    """Rules that leave nothing, or that nothing fits, and what comes nearest."""
    counts, spec = answer.counts, asked.pinned(asked.axes)
    choice = choice_of(spec, asked.profile)
    context = choice_context(spec, asked.profile, choice)
    if counts.enumerated > sum(counts.rejected.values()):
        late = not answer.reproducible and spec.search.mode == "reproducible"
        message = Message("ranking.out_of_time") if late else missing_memory(spec, asked.profile, context)
        return WhyNot(
            rule=None if late else "memory",
            message=Message("ranking.no_plan_with", axes=asked.words, text=message),
            nearest=_nearest(asked),
        )
    rules, own = _rules_and_own_pins(asked, spec.search, context, choice)
    facts: dict[str, Any] = dict(context.facts)
    facts.update((str(axis), value) for axis, value in asked.axes.items())
    rule_texts = (where_known(name, text, facts) for name, text in rules)
    said = [*rule_texts, *own]
    texts = joined(said, "semicolon") if said else Message("ranking.no_such_strategy")
    return WhyNot(
        rule=rules[0][0] if rules else "space",
        message=Message("ranking.nothing_legal", axes=asked.words, target=spec.search.target, texts=texts),
        broken_rules=tuple(name for name, _ in rules),
        nearest=_nearest(asked),
    )


def _rules_and_own_pins(
    asked: PartialStrategy, search: SearchSpec, context: Context, choice: FeatureChoice
) -> tuple[Sequence[tuple[str, str]], list[str]]:
    """Rules, by name and text, and pins of the spec itself that leave nothing."""
    asks_for_more = {*search.fix, *search.allow, *search.forbid} - asked.axes.keys()
    rules = () if asks_for_more else rules_in_the_way(search, context, asked.profile, choice)
    if rules:
        return rules, []
    reasons = conflict(search, context, asked.profile, choice)
    own = [reason.text for reason in reasons if reason.is_pin and reason.name not in asked.axes]
    return [(reason.name, reason.text) for reason in reasons if not reason.is_pin], own


def _nearest(asked: PartialStrategy) -> tuple[NearestChange, ...]:
    """The nearest values of the given axes with which something fits, and what a step takes then by the sweep.

    Fewest axes changed, then the least sum of |log2 ratio|, then the fastest. One axis is freed after the other, then
    all of them.
    """
    axes = asked.axes
    singles = [{name: value for name, value in axes.items() if name != free} for free in axes]
    near = _nearest_with(asked, singles) or (_nearest_with(asked, [{}]) if len(axes) > 1 else None)
    if near is None:
        return ()
    change, seconds = near
    return (NearestChange(change=change, effect=Message("ranking.fits_about_s_step", step=f"{seconds:.4g}")),)


def _nearest_with(asked: PartialStrategy, kept: Sequence[Mapping[Axis, AxisValue]]) -> tuple[str, float] | None:
    """The change in words and s of the nearest that fits, of all choices of axes that are kept; None: none does."""
    specs = [asked.pinned(axes) for axes in kept]
    choice = choice_of(specs[0], asked.profile)
    nominal = choice_context(specs[0], asked.profile, choice)
    found: list[tuple[tuple[float, float, float], str]] = []
    for context, legal in legal_of_each(specs, asked.profile, choice, nominal):
        candidates = concatenate(legal)
        changed, distance = _distances(asked, candidates)
        for level in np.unique(changed).tolist():
            rows = np.flatnonzero(changed == level)
            swept = sweep(candidates.take(rows), context, parts=False)
            fits = np.flatnonzero(swept.template_fits & np.isfinite(swept.after_recompute_s))
            if len(fits):
                seconds = asked.ratio * swept.after_recompute_s[fits]
                first = int(np.lexsort((seconds, distance[rows[fits]]))[0])
                row = int(rows[fits[first]])
                found.append(((level, float(distance[row]), float(seconds[first])), _change(asked, candidates, row)))
                break
    if not found:
        return None
    key, change = min(found, key=lambda each: each[0])
    return change, key[2]


def _distances(asked: PartialStrategy, candidates: Candidates) -> tuple[Floats, Floats]:
    """Axes that are not as given, and the sum of |log2 ratio| of degrees [n]."""
    changed, distance = np.zeros(len(candidates)), np.zeros(len(candidates))
    for name, wanted in asked.axes.items():
        values = getattr(candidates, name)
        if name in CHOICES:
            changed += values != CHOICES[name].index(str(wanted))
            continue
        distinct, of = np.unique(values, return_inverse=True)
        ratios = np.array([log2_ratio(int(value), int(wanted)) for value in distinct])[of]
        changed += ratios > 0
        distance += ratios
    return changed, distance


def _change(asked: PartialStrategy, candidates: Candidates, row: int) -> str:
    """`tp: 8 -> 4, ep: 48 -> 32`."""
    found = candidates.axes_at(row)
    return ", ".join(f"{name}: {value} -> {found[name]}" for name, value in asked.axes.items() if found[name] != value)
