"""recommend(spec, tokens, days, budget): cards for a deadline or a budget, and how throughput grows with cards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message
from autodeploy.search.ranking.measured_speed import at_level, level_of
from autodeploy.specs.answers import CardCount, Recommendation
from autodeploy.specs.cluster import MAX_NPUS
from autodeploy.specs.search import SHORT_SEARCH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.search.planner import Planner
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.questions import Budget
    from autodeploy.specs.spec import Spec

SEARCH: dict[str, Any] = {**SHORT_SEARCH, "time_limit_s": 20.0}
PRIMES = (2, 3, 5, 7)
MAX_CARDS_FACTOR = 16  # times the cards of the spec, where no limit is given
MIN_THROUGHPUT_SHARE = 0.97  # an estimate of so much of what is needed is worth a search
MOST_SEARCHES = 6
DAY_S = 86_400.0


def recommend(spec: Spec, asked: Budget, *, planner: Planner) -> Recommendation:
    """The fewest cards that train the asked tokens in the days, or the most that the budget pays for, with the plan.

    Looked at are whole nodes in numbers without a prime factor above 7: others leave cards or batch undivided. The
    sweep's estimate brackets the answer by bisection, searches of small effort settle it.

    asked : its budget is in card-hours (`budget_in_hours`).

    Raises SpecError if there is no number of tokens, neither deadline nor budget, or the spec can't be planned.
    """
    return recommend_with_plans(spec, asked, planner=planner)[0]


def budget_in_hours(spec: Spec, cost: float | None) -> float | None:
    """Card-hours that so much money of the spec's currency pays for; None for no budget.

    Raises SpecError where the spec has no price of a card-hour.
    """
    if cost is None:
        return None
    price = None if spec.run is None else spec.run.price_per_npu_hour
    if not price:
        needed = Message("common.is_required", name="run.price_per_npu_hour")
        raise SpecError(needed, path="/run/price_per_npu_hour", hint="{run: {price_per_npu_hour: 1.2}}")
    return cost / price


def recommend_with_plans(
    spec: Spec, asked: Budget, *, planner: Planner, beside: tuple[float, ...] = ()
) -> tuple[Recommendation, dict[int, Plan]]:
    """`recommend`, and the plan of each number of cards that was searched for.

    beside : multiples of the cards of the answer (of the most cards, where none meets the deadline) that are searched
        for as well.
    """
    days, npu_hours, max_npus = asked.days, asked.npu_hours, asked.max_npus
    if days is None and npu_hours is None:
        either = Message("common.at_least_one_of", names="days, npu_hours")
        raise SpecError(Message("common.is_required", name="days"), path="/days", hint=either)
    tokens = spec.training.tokens if asked.tokens is None else asked.tokens
    if tokens is None:
        raise SpecError(
            Message("common.is_required", name="training.tokens"), path="/training/tokens", hint="tokens: 13e12"
        )
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"tokens": tokens}), "strategy": None})
    needed = 0.0 if days is None else tokens / (days * DAY_S)
    table = _Table(spec, planner, needed, 0.0 if npu_hours is None else tokens / (npu_hours * 3600.0))
    limit = min(MAX_NPUS, MAX_CARDS_FACTOR * _cards(spec)) if max_npus is None else max_npus
    counts = list(card_counts(_node(spec), limit))
    if not counts:
        raise SpecError(
            Message("what_if.below_one_node", count=limit),
            path="/max_npus",
            hint=Message("field_fault.at_least", bound=_node(spec)),
        )
    chosen = _most_affordable(table, counts, _node(spec)) if days is None else _settle(table, counts)
    for factor in beside:
        wanted = factor * (counts[-1] if chosen is None else chosen)
        table.meets(_nearest(counts, wanted))
    message = _message(table, chosen, counts, tokens, days, npu_hours)
    if chosen is not None and not table.affords(chosen):
        chosen = None  # a deadline that costs more than there is
    answer = Recommendation(
        tokens=tokens,
        days=days,
        npu_hours=npu_hours,
        num_npus=chosen,
        plan=None if chosen is None else table.plans[chosen],
        scaling=table.rows(tokens),
        message=message,
        spec=spec.model_dump(mode="json"),
        engine_version=ENGINE_VERSION,
    )
    return answer, {count: plan for count, plan in sorted(table.plans.items()) if plan is not None}


def _message(
    table: _Table,
    chosen: int | None,
    counts: list[int],
    tokens: float,
    days: float | None,
    npu_hours: float | None,
) -> Message:
    if chosen is None and days is not None:
        return Message("what_if.no_count_meets_deadline", cards=counts[-1], days=days)
    if chosen is None:
        return Message("what_if.over_budget", hours=npu_hours, cards=counts[0])
    taken = table.days_of(chosen, tokens)
    hours = 24.0 * taken * chosen
    if days is None:
        return Message("what_if.in_budget", cards=chosen, days=taken, hours=hours, limit=npu_hours)
    if not table.affords(chosen):
        return Message("what_if.deadline_costs", cards=chosen, limit=days, hours=hours, budget=npu_hours)
    return Message("what_if.deadline_met", cards=chosen, days=taken, limit=days)


def card_counts(per_node: int, limit: int) -> Iterator[int]:
    """Cards in whole nodes, the nodes without a prime factor above 7, ascending."""
    for nodes in range(1, limit // per_node + 1):
        rest = nodes
        for prime in PRIMES:
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            yield nodes * per_node


def _nearest(counts: list[int], wanted: float) -> int:
    return min(counts, key=lambda count: (abs(count - wanted), count))


class _Table:
    """Tokens a second of card counts, each computed once."""

    def __init__(self, spec: Spec, planner: Planner, needed: float, needed_of_card: float) -> None:
        self._spec, self._planner, self.needed, self.needed_of_card = spec, planner, needed, needed_of_card
        self._batch = spec.training.global_batch_size.value * spec.training.sample_tokens
        self._level = level_of(spec)
        self._estimates: dict[int, float] = {}
        self.plans: dict[int, Plan | None] = {}

    def estimate(self, num_npus: int) -> float:
        """As the sweep estimates it; 0 where nothing fits."""
        if num_npus not in self._estimates:
            fastest = self._planner.fastest_s(_on(self._spec, num_npus))
            rate = 0.0 if fastest is None else self._batch / fastest
            # A number of cards that was measured on itself is at its own level already.
            if self._level is not None and level_of(_on(self._spec, num_npus)) is None:
                rate /= self._level.ratio
            self._estimates[num_npus] = rate
        return self._estimates[num_npus]

    def meets(self, num_npus: int) -> bool:
        """Whether a plan that a search finds is fast enough."""
        if num_npus not in self.plans:
            search = self._spec.search.model_copy(update=SEARCH)
            asked = _on(self._spec, num_npus).model_copy(update={"search": search})
            plans = self._planner.plan(asked, alone=True).plans
            self.plans[num_npus] = at_level(plans[0], self._level) if plans else None
        plan = self.plans[num_npus]
        return plan is not None and plan.tokens_per_s >= self.needed

    def affords(self, num_npus: int) -> bool:
        """Whether a plan that a search finds trains within the budget."""
        self.meets(num_npus)
        plan = self.plans[num_npus]
        return plan is not None and plan.tokens_per_s >= self.needed_of_card * num_npus

    def plan_against_estimate(self, num_npus: int) -> float:
        """Throughput of the plan that was found against its estimate; 1 where there is none."""
        plan, estimate = self.plans.get(num_npus), self.estimate(num_npus)
        return 1.0 if plan is None or estimate <= 0.0 else plan.tokens_per_s / estimate

    def days_of(self, num_npus: int, tokens: float) -> float:
        plan = self.plans[num_npus]
        assert plan is not None
        return tokens / plan.tokens_per_s / DAY_S

    def rows(self, tokens: float) -> tuple[CardCount, ...]:
        """Everything looked at, by number of cards; efficiency is against the first."""
        rows: list[CardCount] = []
        for count in sorted({*self._estimates, *self.plans}):
            plan = self.plans.get(count)
            rate = self.estimate(count) if plan is None else plan.tokens_per_s
            if rate <= 0.0:
                continue
            days = tokens / rate / DAY_S
            a_card = rate / count
            faster = max(rows, key=lambda row: row.tokens_per_s, default=None)
            slower = faster is not None and rate < faster.tokens_per_s
            rows.append(
                CardCount(
                    num_npus=count,
                    tokens_per_s=rate,
                    days=days,
                    npu_hours=24.0 * days * count,
                    efficiency=1.0 if not rows else a_card / (rows[0].tokens_per_s / rows[0].num_npus),
                    estimated=plan is None,
                    note=Message("what_if.slower_than", cards=faster.num_npus) if faster and slower else None,
                )
            )
        return tuple(rows)


def _first_enough(table: _Table, counts: list[int], share: float, low: int, high: int) -> int:
    """Index in [low, high] of the first count whose estimate is `share` of what is needed, by bisection."""
    while low < high:
        middle = (low + high) // 2
        if table.estimate(counts[middle]) >= share * table.needed:
            high = middle
        else:
            low = middle + 1
    return low


def _most_affordable(table: _Table, counts: list[int], per_node: int) -> int | None:
    """The count whose plan finishes first within the budget.

    Throughput of a card does not fall evenly with their number, so all counts without a prime factor above 3 are
    estimated; those that should do are searched, the fastest first.
    """
    smooth = [count for count in counts if _is_smooth(count // per_node)]
    cheapest = max(smooth, key=lambda count: table.estimate(count) / count)
    share, best = 1.0, None
    for _ in range(MOST_SEARCHES):
        left = [
            count
            for count in smooth
            if count not in table.plans
            and (best is None or table.estimate(count) > table.estimate(best))
            and table.estimate(count) * share >= table.needed_of_card * count
        ]
        if not left and not table.plans:
            left = [cheapest]  # tells how far plans are from estimates
        if not left:
            break
        count = max(left, key=table.estimate)
        best = count if table.affords(count) else best
        share = table.plan_against_estimate(count)
    return best


def _is_smooth(number: int) -> bool:
    for prime in (2, 3):
        while number % prime == 0:
            number //= prime
    return number == 1


def _settle(table: _Table, counts: list[int]) -> int | None:
    """The fewest cards whose plan meets the deadline.

    Each search says how far plans are from estimates, which tells where to search next: the first count that should do,
    and as long as the next smaller one is not hopeless, that one too.
    """
    failed, passed = -1, len(counts)
    index = _first_enough(table, counts, 1.0, 0, len(counts) - 1)
    for _ in range(MOST_SEARCHES):
        count = counts[index]
        if table.meets(count):
            passed = index
        else:
            failed = index
        if passed - failed == 1:
            break
        share = 1.0 / table.plan_against_estimate(count)
        index = _first_enough(table, counts, share, failed + 1, passed - 1)
        if passed < len(counts) and table.estimate(counts[index]) < MIN_THROUGHPUT_SHARE * share * table.needed:
            break
    return counts[passed] if passed < len(counts) else None


def _on(spec: Spec, num_npus: int) -> Spec:
    cluster = spec.cluster.model_copy(update={"num_npus": num_npus, "blocks": None, "spare_npus": 0})
    return spec.model_copy(update={"cluster": cluster})


def _cards(spec: Spec) -> int:
    if spec.cluster.num_npus is not None:
        return spec.cluster.num_npus
    return sum(block.nodes for block in spec.cluster.blocks or ()) * _node(spec)


def _node(spec: Spec) -> int:
    return profile_of(spec.cluster).npus_per_node
