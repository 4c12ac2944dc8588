"""Choice of the plan to recommend: the one that costs least on average, failed launches and restarts among it.

Beside the plans of the search, which are fastest by the predicted times, others are considered: those that would be
fastest with an influential number at its bad end, those that rest on least that no run has shown, and of each the plan
that fits with 90 %, however its optimizer states are kept; of the best ones also the plan at the floor of P(fits). All
of them meet in the same draws of the error box, and the least expected cost is recommended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.steps.scenarios import context_in
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.frontier import card_bytes
from autodeploy.search.branch_and_bound.least_memory import WAYS_MARGIN, RoomyPlans
from autodeploy.search.choices.effort import QUICK
from autodeploy.search.placement.solve import solve
from autodeploy.search.ranking.counterfactuals import MOST, stepped, steps_from
from autodeploy.search.ranking.diversity import outlines
from autodeploy.search.ranking.regret import regret_order
from autodeploy.search.ranking.sensitivities import Responses, as_predicted, responses
from autodeploy.search.ranking.uncertainty import LEAST_P_FITS, memory_spread_of, p_fits, p_starts, roomy_limit_bytes
from autodeploy.search.ranking.uncertainty_set import uncertainty_set
from autodeploy.search.ranking.unproven import unproven_axes, unproven_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.prediction_spread import MemorySpread
    from autodeploy.costs.steps.scenarios import Scenario
    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.search.branch_and_bound.search_space import SearchSpace
    from autodeploy.search.choices.effort import Budget
    from autodeploy.search.ranking.counterfactuals import Step
    from autodeploy.search.ranking.expected_cost import RiskPrice
    from autodeploy.search.ranking.uncertainty_set import UncertaintySet
    from cost_models.arrays import Floats, Ints
    from hardware_profiles.profile import Profile


# Candidates that would look fastest elsewhere.
MAX_SLOWDOWN: Final = 0.3
"""Candidates whose estimate is longer than that of the fastest plan by more than this share are nobody's best."""
MAX_CANDIDATES: Final = 4096
"""Candidates that are looked at again in every world, the fastest."""


def near_rows(searched: SearchSpace, fastest: Solved) -> Ints:
    """Candidates near the fastest plan, in the order of their estimate: a plan is faster than its own estimate, which
    knows one placement only.
    """
    rows, estimates_s = searched.swept.fastest(MAX_CANDIDATES), searched.swept.after_recompute_s
    near_s = max(fastest.solution.step_s, float(estimates_s[fastest.index]))
    return rows[estimates_s[rows] <= (1.0 + MAX_SLOWDOWN) * near_s]


def estimates_in(
    worlds: Sequence[Scenario],
    searched: SearchSpace,
    rows: Ints,
    box: UncertaintySet,
    limit_bytes: Callable[[Context], float],
    *,
    should_cancel: Callable[[], bool] | None,
) -> list[Floats] | None:
    """Step times of candidates in each world, with enough recomputed to stay below a limit [rows]; inf where none does.

    None when cancelled.
    """
    variants = searched.variant[rows]
    some = [np.flatnonzero(variants == variant) for variant in np.unique(variants)]
    candidates = [searched.candidates.take(rows[of_variant]) for of_variant in some]
    found: list[Floats] = []
    for world in worlds:
        if should_cancel is not None and should_cancel():
            return None
        estimates = np.full(len(rows), np.inf)
        for of_variant, taken in zip(some, candidates, strict=True):
            context = searched.context_of(int(rows[of_variant[0]]))
            within = replace(context_in(context, box.numbers, world), limit_bytes=limit_bytes(context))
            estimates[of_variant] = sweep(taken, within, parts=False).after_recompute_s
        found.append(estimates)
    return found


def bad_worlds(answers: Responses, count: int) -> list[Scenario]:
    """The worlds in which one number, of the most influential, is where the first plan falls farthest behind."""
    order = np.argsort(-answers.influence(), kind="stable")[:count]
    ends = answers.box.ends()
    worlds: list[Scenario] = []
    for number in order.tolist():
        behind = [
            moved[0] - (answers.nominal + moved).min() for moved in (answers.low[:, number], answers.high[:, number])
        ]
        worlds.append(ends[2 * number + int(behind[1] >= behind[0])])
    return worlds


def first_of_each(rows: Ints, seconds: Floats, outer: Ints, count: int, *, without: Sequence[int] = ()) -> list[int]:
    """The first `count` candidates by their time, one of each outer strategy; none of the outer strategies left out."""
    seen = set(without)
    firsts: list[int] = []
    for place in np.argsort(seconds, kind="stable").tolist():
        number = int(outer[rows[place]])
        if len(firsts) == count or not np.isfinite(seconds[place]):
            break
        if number not in seen:
            seen.add(number)
            firsts.append(int(rows[place]))
    return firsts


DRAWS: Final = 200
FROM_SEARCH: Final = 12
OUTLINES, MORE = 8, 3
"""Outlines with a plan that leaves room: of any answer, and beyond those of a long one."""
LEAST_LEVEL: Final = 0.6
"""P(fits) that plans are made for where none reaches the floor."""
AT_FLOOR: Final = 9
"""Outer strategies of which plans are made at once that fit no more surely than the floor asks for: the most promising,
then those that still are."""
FASTEST, LEAST_FASTEST, ELSEWHERE, PROVEN = 8, 4, 2, 2
"""Plans made with more room: of the search's fastest, of the candidates that look fastest in each other world, of those
that rest on least."""
LOOKS: Final = 1.5
"""Looks of a search with more room, in those of the search itself: nothing is proven there."""
NUM_BAD_WORLDS: Final = 4
"""Numbers at whose bad end all candidates are looked at again, the most influential."""
MOST_FIRSTS: Final = 2
"""First plans of the ranking from which steps are taken: a step may lead to a better one."""
NUM_REFINED: Final = 2
"""Of the first plans of the ranking, so many are solved in full."""
USUAL_QUICK: Final = 60
"""Quick plans of a search for which the counts above are meant."""


def from_search(top_k: int) -> int:
    """Plans of the search that are held against the others, the fastest."""
    return max(2 * top_k, FROM_SEARCH)


@dataclass(frozen=True, eq=False)
class Weighed:
    """One plan of the search or beside it, as `Considered`.

    instead : row of the plan to launch where it does not start.
    """

    solved: Solved
    p_fits: float
    p_starts: float
    unproven: frozenset[str]
    regret: float | None
    expected_s: float
    row: int
    instead: int

    @property
    def step_s(self) -> float:
        """Predicted step time."""
        return self.solved.solution.step_s

    @property
    def axes(self) -> Mapping[str, object]:
        """Degrees and words by the name of their axis."""
        return self.solved.candidate.axes_at(0)


@dataclass(frozen=True, eq=False)
class Advice:
    """The plans that were considered, from the one to recommend on; the search's fastest is among them.

    least_p_fits : with which probability those that have a regret fit. weights : what a second of each plan's step
    counts in the objective, by row. price : what risks cost.
    """

    weighed: tuple[Weighed, ...]
    responses: Responses
    least_p_fits: float
    weights: Floats
    price: RiskPrice

    @property
    def fastest(self) -> Weighed:
        """The best plan by its predicted time."""
        return min(self.weighed, key=lambda each: (each.step_s * self.weights[each.row], each.row))

    @property
    def else_launched(self) -> Weighed | None:
        """The launch after a first plan that does not start; None where that is sure enough, or nothing is surer."""
        first = self.weighed[0]
        instead = next(each for each in self.weighed if each.row == first.instead)
        return None if first.p_fits >= LEAST_P_FITS or instead is first or instead.p_fits < first.p_fits else instead


class Adviser:
    """Considers plans beside those of a search.

    top_k : plans that the answer is to have. weight_of : what a second of a plan's step counts in the objective, by its
        context. price : what risks cost.
    """

    def __init__(
        self,
        profile: Profile,
        searched: SearchSpace,
        frontier: SearchState,
        top_k: int,
        budget: Budget,
        weight_of: Callable[[Context], float],
        price: RiskPrice,
        should_cancel: Callable[[], bool] | None = None,
    ) -> None:
        self._searched, self._frontier, self._budget = searched, frontier, budget
        self._best = frontier.best[: from_search(top_k)]
        self._top_k = top_k
        self._weight_of, self._should_cancel = weight_of, should_cancel
        self._box: UncertaintySet = uncertainty_set(profile, self._best[0].context)
        self._draws = self._box.draws(DRAWS)
        self._request = searched.request(top_k, 0.0, budget, should_cancel=should_cancel)
        self._outer = self._request.outer
        self._outlines = outlines(searched.candidates)
        self._spreads: dict[int, MemorySpread] = {}
        self._rooms: dict[tuple[int, float], float] = {}
        self._unproven: dict[int, frozenset[str]] = {}
        self._price = price
        self._peaks = {id(each): card_bytes(each) for each in self._best}
        self._makers: dict[int, RoomyPlans] = {}
        self._by_level: dict[float, RoomyPlans] = {}
        self.steps: tuple[Step, ...] = ()
        """Steps of the first plan's axes, of which plans were made."""
        self.so_far = self._ranked(self._best, self._predicted(self._best))
        """The ranking of what is known by now, by predicted times where there was no time for draws."""

    def advise(self, *, hurried: bool = False, stepping: bool = False) -> Advice:
        """The ranking; that of what was known where the search was cancelled meanwhile.

        hurried : only the search's own outer strategies are considered, the best first. stepping : also the steps of
        the first plan's axes.
        """
        floor = self._price.floor
        sure = max(LEAST_P_FITS, floor)
        made: list[Solved] = []

        def make(candidates: Sequence[int], level: float) -> None:
            made.extend(self._made(candidates, level, [*self._best, *made]))
            self.so_far = self._ranked([*self._best, *made], self._predicted([*self._best, *made]))

        if self.so_far.least_p_fits < floor and not hurried:
            make(self._nearest(sure), sure)  # before all that takes longer: there may be no time for more
        known = None if hurried else self._responses(self._best)
        if known is None and not hurried:
            return self.so_far
        picks = partial(self._picks, known) if known is not None else self._nearest
        for level in (sure, floor, LEAST_LEVEL):
            if self._stopped() or (level < sure and self.so_far.least_p_fits >= floor):
                break
            make(picks(level), level)
        answers = self._responses(made) if known is not None else self._responses([*self._best, *made])
        if answers is None:
            return self.so_far
        answers = answers if known is None else known.joined(answers)
        self.so_far = self._ranked([*self._best, *made], answers)
        if floor < sure and self.so_far.least_p_fits >= floor:
            self._make_at_floor()
        self.so_far = self._in_every_way(self.so_far, sure)
        self.so_far = self._with_every_chunk_filled(self._in_full(self.so_far))
        if stepping:
            self._step_from_first(sure)
        return self.so_far

    def _make_at_floor(self) -> None:
        """Ranks plans that fit no more surely than the floor asks for too, while any may cost less than the first."""
        fastest = self._best[0].index
        more, seen = list(dict.fromkeys([*self._promising(()), fastest])), set[int]()
        while more and not self._stopped():
            seen |= {int(self._outer[index]) for index in more}
            self.so_far = self._ranked_with(self._made(more, self._price.floor, _pool(self.so_far)), self.so_far)
            more = self._promising(seen)

    def _step_from_first(self, level: float) -> None:
        """The ranking with plans of the steps from its first plan; where one of them is first, of its own steps too."""
        for _ in range(MOST_FIRSTS):
            first = self.so_far.weighed[0]
            self.so_far = self._ranked_with(self._stepped(first.solved, level, _pool(self.so_far)), self.so_far)
            if self.so_far.weighed[0].row == first.row:
                return

    def _stepped(self, first: Solved, level: float, known: Sequence[Solved]) -> list[Solved]:
        """Plans of the steps of a first plan's axes; where one has none, of the next axis."""
        steps = steps_from(self._searched, first)
        made = self._made([step.index for step in steps[:MOST]], level, known)
        count = MOST
        while count < len(steps) and len(stepped(steps[:count], [first, *known, *made])) < MOST and not self._stopped():
            made += self._made([steps[count].index], level, [*known, *made])
            count += 1
        self.steps = tuple(steps[:count])
        return made

    def by_prediction(self, *, stepping: bool = False) -> list[Solved]:
        """The search's plans and those that are made with more room, the fastest first; stepping : as of `advise`."""
        known = self._responses(self._best)
        made = [] if known is None else self._made(self._picks(known, LEAST_P_FITS), LEAST_P_FITS, self._best)
        if stepping and not self._stopped():
            first = min([*self._best, *made], key=lambda each: (each.solution.step_s, each.index))
            made += self._stepped(first, LEAST_LEVEL, [*self._best, *made])
        if known is not None and self._price.floor < LEAST_P_FITS and not self._stopped():
            made += self._made(self._nearest(self._price.floor), self._price.floor, [*self._best, *made])
        soonest = sorted(made, key=lambda each: (each.solution.step_s, each.index))[:NUM_REFINED]
        made += [self._makers[id(each)].refined(each, self._budget.effort) for each in soonest if not self._stopped()]
        # What is proven of the search's own plans and of open candidates holds for these.
        proven = [replace(each, solution=replace(each.solution, bound_s=each.solution.step_s)) for each in made]
        best = [*self._frontier.best, *proven]
        return sorted(best, key=lambda each: (each.solution.step_s, each.index))

    def _promising(self, seen: Container[int]) -> list[int]:
        """Of outer strategies, but those that were seen, that may cost less than the first plan with no more room than
        the floor asks for, the first candidates of the ranking, the most promising first: no plan of one is faster than
        what the search knows, or where it knows none than its bound.
        """
        outer, bound_s, least_s = self._outer, self._searched.swept.bound_s, dict[int, float]()
        for one in self._frontier.found:
            number = int(outer[one.index])
            least_s[number] = min(one.step_s, least_s.get(number, np.inf))
        hopes: dict[int, tuple[float, int]] = {}
        first = self.so_far.weighed[0]
        enough = first.expected_s * float(self.so_far.weights[first.row])
        for each in self.so_far.weighed:
            number, cost = self._number(each.solved), float(self.so_far.weights[each.row]) * each.expected_s
            if number in seen:
                continue
            if number not in least_s:
                least_s[number] = float(bound_s[outer == number].min())
            hope = cost * min(1.0, least_s[number] / each.step_s)
            if hope < enough:
                hopes[number] = min((hope, each.solved.index), hopes.get(number, (np.inf, 0)))
        return [index for _, index in sorted(hopes.values())[:AT_FLOOR]]

    def _nearest(self, _level: float) -> list[int]:
        """The search's fastest candidates, whatever room they are to leave."""
        return [each.index for each in self._best[: max(LEAST_FASTEST, self._scaled(FASTEST))]]

    def _scaled(self, count: int) -> int:
        return round(count * self._budget.quick / USUAL_QUICK)

    def _made(self, picks: Sequence[int], level: float, known: Sequence[Solved]) -> list[Solved]:
        """Plans that fit with a probability, but for those that are known."""
        if level not in self._by_level:
            self._by_level[level] = self._maker(level)
        maker = self._by_level[level]
        identities = {_identity(each) for each in known}
        made = [each for each in maker.plans(picks) if _identity(each) not in identities]
        self._peaks |= {id(each): maker.card_bytes(each) for each in made}
        self._makers |= {id(each): maker for each in made}
        return made

    def _stopped(self) -> bool:
        return self._should_cancel is not None and self._should_cancel()

    def _predicted(self, plans: Sequence[Solved]) -> Responses:
        return as_predicted(self._box, [each.solution.step_s for each in plans])

    def _in_every_way(self, advice: Advice, level: float) -> Advice:
        """The ranking with all ways of its first outer strategy to keep optimizer states: of one that is far behind the
        fastest as predicted, only the fastest way was planned.
        """
        maker = self._by_level.get(level)
        for _ in range(MOST_FIRSTS):
            first = advice.weighed[0].solved
            if maker is None or self._number(first) in maker.in_every_way or self._stopped():
                break
            before, advice = advice, self._ranked_with(self._made([first.index], level, _pool(advice)), advice)
            if advice is before:
                break
        return advice

    def _in_full(self, advice: Advice) -> Advice:
        """The ranking with its first plans also solved in full, and the first one's other ways to keep states; those of
        the search were. What is faster as predicted may cost more in the draws: quick plans stay.
        """
        better: list[Solved] = []
        known = {_identity(each) for each in _pool(advice)}
        for each in dict.fromkeys([*advice.weighed[:NUM_REFINED], *self._other_ways(advice)]):
            if each.row < len(self._best) or self._stopped():
                continue
            maker = self._makers[id(each.solved)]
            refined = maker.refined(each.solved, self._budget.effort)
            if _identity(refined) not in known:
                known.add(_identity(refined))
                self._peaks[id(refined)] = maker.card_bytes(refined)
                self._makers[id(refined)] = maker
                better.append(refined)
        return self._ranked_with(better, advice)

    def _other_ways(self, advice: Advice) -> list[Weighed]:
        """Plans of the first one's outer strategy that keep optimizer states otherwise and are hardly slower: a quick
        plan does not tell which way is the fastest.
        """
        first = advice.weighed[0]
        number, enough = self._number(first.solved), (1.0 + WAYS_MARGIN) * first.step_s
        return [
            each
            for each in advice.weighed
            if each.solved.index != first.solved.index and self._number(each.solved) == number and each.step_s <= enough
        ]

    def _with_every_chunk_filled(self, advice: Advice) -> Advice:
        """The ranking with another plan of a first one that leaves a chunk to the model's end alone: its layers in all
        chunks. Where layers turn out faster than the head, the stage of that chunk is the one that all wait for.
        """
        first = advice.weighed[0].solved
        if first.plan.layout.sum(axis=-1).all() or self._stopped():
            return advice
        problem = replace(first.problem, min_layers_per_chunk=1)
        solution = solve(problem, effort=QUICK, should_cancel=self._should_cancel)
        if solution.plan is None:
            return advice
        filled = replace(first, problem=problem, solution=solution)
        maker = self._makers.get(id(first))
        self._peaks[id(filled)] = card_bytes(filled) if maker is None else maker.card_bytes(filled)
        if maker is not None:
            self._makers[id(filled)] = maker
        return self._ranked_with([filled], advice)

    def _ranked_with(self, more: Sequence[Solved], advice: Advice) -> Advice:
        """The ranking with more plans in it; as it is where there are none, or the search was cancelled."""
        answers = self._responses(more) if more else None
        return advice if answers is None else self._ranked([*_pool(advice), *more], advice.responses.joined(answers))

    def _ranked(self, pool: Sequence[Solved], answers: Responses) -> Advice:
        fits, starts = (np.array([chance(each) for each in pool]) for chance in (self._p_fits, self._p_starts))
        unproven = [self._rests_on(each) for each in pool]
        weights = np.array([self._weight_of(each.context) for each in pool])
        order = regret_order(
            answers.at(self._draws),
            answers.nominal,
            fits,
            unproven,
            self._price.floor,
            starts=starts,
            weights=np.log(weights),
            alike=np.array([self._number(each) for each in pool]),
            price=self._price,
        )
        weighed = (
            Weighed(
                pool[row],
                float(fits[row]),
                float(starts[row]),
                unproven[row],
                order.regret.get(row),
                float(order.expected_s[row]),
                row,
                int(order.fallbacks[row]),
            )
            for row in order.order
        )
        return Advice(tuple(weighed), answers, order.least_p_fits, weights, self._price)

    def _picks(self, known: Responses, level: float) -> list[int]:
        """Candidates to make plans of that leave room: in no order that matters, but always the same."""
        rows = near_rows(self._searched, self._best[0])
        if not len(rows):
            return self._nearest(level)
        limit_bytes = partial(self._usual_limit, level=level)
        roomy, kept, seconds = self._searched.below(rows, limit_bytes)
        worlds = bad_worlds(known, NUM_BAD_WORLDS)
        fit = [each for each in self._best if self._p_fits(each) >= level]
        numbers_of_fit = [self._number(each) for each in fit]
        # Of most of them the search has looked at a template only, whatever room that leaves.
        picks = dict.fromkeys([*self._nearest(level), *self._fastest_with_room(roomy, kept)])
        moved = estimates_in(worlds, self._searched, rows, self._box, limit_bytes, should_cancel=self._should_cancel)
        if moved is None:
            return list(picks)
        others = [int(self._outlines[each.index]) for each in fit]
        count = max(0, max(self._top_k + MORE, OUTLINES) - len(set(others)))
        picks |= dict.fromkeys(first_of_each(rows, seconds, self._outlines, count, without=others))
        least, count = self._rest_on_least(rows, seconds), max(1, self._scaled(PROVEN))
        picks |= dict.fromkeys(first_of_each(rows[least], seconds[least], self._outer, count, without=numbers_of_fit))
        count = max(1, self._scaled(ELSEWHERE))
        for elsewhere_s in moved:
            picks |= dict.fromkeys(first_of_each(rows, elsewhere_s, self._outer, count, without=numbers_of_fit))
        return list(picks)

    def _fastest_with_room(self, roomy: SearchSpace, kept: Ints) -> list[int]:
        """Of the candidates that may fit below the limit that leaves room, at some rows, those whose plans are the
        fastest found: an estimate knows one placement only, which tells little once memory binds.
        """
        if not len(kept):
            return []
        quick = round(LOOKS * self._budget.quick)
        budget = replace(self._budget, quick=quick, refined=0, paths=0, exact_solves=0)
        request = roomy.request(self._top_k, budget.proof_gap, budget, should_cancel=self._should_cancel)
        solver = self._frontier.solver
        like = None if solver is None else lambda index: solver.plans(int(kept[index]))
        found = best_first(request, keep=max(LEAST_FASTEST, self._scaled(FASTEST)), like=like)
        return [int(kept[each.index]) for each in found.best]

    def _rest_on_least(self, rows: Ints, seconds: Floats) -> Ints:
        """Of candidates that fit, those with the fewest degrees and words that no run has [some of rows]."""
        fit = np.flatnonzero(np.isfinite(seconds))
        if not len(fit):
            return fit
        counts = unproven_axes(self._searched.candidates.take(rows[fit]), self._best[0].context)
        return np.asarray(fit[counts == counts.min()])

    def _maker(self, level: float) -> RoomyPlans:
        def limit_bytes(index: int) -> float:
            # Of a spread that runs have moved each limit takes a search; it is one for all plans of an outer strategy.
            key = int(self._outer[index]), level
            if key not in self._rooms:
                self._rooms[key] = roomy_limit_bytes(1.0, self._spread(index), level)
            return self._searched.context_of(index).limit_bytes * self._rooms[key]

        return RoomyPlans(self._request, limit_bytes, self._frontier.solver)

    def _usual_limit(self, context: Context, level: float) -> float:
        """The limit of the fastest plan, for a look at all candidates: without what runs said of this plan alone."""
        spread = self._spread(self._best[0].index)
        if spread.belief is not None:
            spread = replace(spread, belief=replace(spread.belief, same=()))
        return roomy_limit_bytes(context.limit_bytes, spread, level)

    def _spread(self, index: int) -> MemorySpread:
        """Of the peak of a candidate's plans."""
        number = int(self._outer[index])
        if number not in self._spreads:
            candidate = self._searched.candidates.take(slice(index, index + 1))
            self._spreads[number] = memory_spread_of(candidate, self._searched.context_of(index))
        return self._spreads[number]

    def _rests_on(self, solved: Solved) -> frozenset[str]:
        """Gains of a plan's candidate that no run has shown; the ranking is made again once plans are refined."""
        if solved.index not in self._unproven:
            self._unproven[solved.index] = unproven_of(solved.candidate, solved.context)
        return self._unproven[solved.index]

    def _p_fits(self, solved: Solved) -> float:
        return p_fits(self._peaks[id(solved)], solved.context.limit_bytes, self._spread(solved.index))

    def _p_starts(self, solved: Solved) -> float:
        context, spread = solved.context, self._spread(solved.index)
        return p_starts(self._peaks[id(solved)], context.limit_bytes, spread, moe=context.model.is_moe)

    def _number(self, solved: Solved) -> int:
        """Of a plan's outer strategy."""
        return int(self._outer[solved.index])

    def _responses(self, plans: Sequence[Solved]) -> Responses | None:
        return responses(plans, self._box, solver=self._frontier.solver, should_cancel=self._should_cancel)


def _pool(advice: Advice) -> list[Solved]:
    """The plans of a ranking by their rows."""
    return [each.solved for each in sorted(advice.weighed, key=lambda each: each.row)]


def _identity(solved: Solved) -> tuple[object, ...]:
    """Identity of a candidate's plan: where its layers are and what they recompute or swap."""
    applied = solved.plan.applied
    used = [
        (option.name, option.layer_class, applied[:, number].tobytes())
        for number, option in enumerate(solved.problem.options)
        if applied[:, number].any()
    ]
    return solved.index, solved.plan.layout.tobytes(), tuple(sorted(used))
