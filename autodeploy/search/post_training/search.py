"""The search: every layout of generation beside the best of the update, wherever both may run.

A step never becomes shorter when training or generation becomes longer. So what both take at least, on the cards that a
placement gives them, bounds every step of it: choices are put together in the order of their bounds, until those left
cannot be among the best any more. Where generation beside training leaves no step among them, no update is searched.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autodeploy.costs.post_training.generation import Case, GenerationPart, generations, limited_alike
from autodeploy.costs.post_training.overheads import overheads_of
from autodeploy.costs.post_training.rl_step import splits
from autodeploy.costs.post_training.samples import InfeasibleRlError
from autodeploy.costs.post_training.step import combined
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message, joined
from autodeploy.search.post_training.generation_layouts import (
    NO_DEGREE,
    layouts_on,
    near_cards,
    offloads,
    partials,
    placements,
    refuse_unknown_precision,
    stalenesses,
    thriftier,
    values_left,
)
from autodeploy.search.post_training.launchable import WHOLE_NODES, Launchable
from autodeploy.search.post_training.update_layouts import Updates, least_training_s, search_updates, undominated
from autodeploy.search.ranking.advice import MAX_SLOWDOWN
from autodeploy.specs.rl import RlStrategy
from cost_models.placements import asynchronous

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from autodeploy.costs.post_training.step import RlStep
    from autodeploy.kit.deadline import Deadline
    from autodeploy.search.post_training.update_layouts import LayoutSearch, Update, UpdateLayouts
    from autodeploy.specs.rl import GenerationLayout, Offload, Placement
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

    _Asked: TypeAlias = tuple[GenerationLayout, Case]

MAX_SOLVED_SPLITS = 3  # of the cards, that are looked at in earnest by placement: those whose estimate is best
AT_ONCE = 4  # degrees of the update by number of cards, that generation is put beside
MAX_BOUND_SEARCHES = 4  # numbers of trainers, that are searched without launch rules for a bound of split placements
KEPT_PER_PLAN = 4  # times as many choices as plans are asked for are kept, so that plans can differ


@dataclass(frozen=True)
class Choice:
    """One plan: an update and a layout of generation under a placement, with the step that they make."""

    update: Update
    generation: GenerationPart
    layout: RlStrategy
    step: RlStep

    @property
    def outline(self) -> tuple[object, ...]:
        """Traits that make it another plan for who launches it."""
        degrees, g, how = self.update.degrees, self.layout.generation, self.layout
        return (how.placement, how.generation_npus, how.staleness, degrees, g.tp, g.dp, g.ep, g.mode, g.precision)

    @property
    def of_update(self) -> tuple[object, ...]:
        """The outline, of this update alone: others of its degrees may fit more surely, or less."""
        return (*self.outline, id(self.update))

    @property
    def peak_bytes(self) -> float:
        """Of the fullest die, in any phase."""
        return max(self.step.peak_memory_bytes.values())


@dataclass
class RlResult:
    """Result of a search. choices : best first. bound_s : no plan takes less; refused : choices by their rule."""

    choices: list[Choice] = field(default_factory=list)
    bound_s: float | None = None
    enumerated: int = 0
    combined: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    errors: list[SpecError] = field(default_factory=list)
    best_of: dict[str, float] = field(default_factory=dict)

    def refuse(self, error: InfeasibleRlError) -> None:
        """Counts a choice that cannot be."""
        self.refused[error.rule] = self.refused.get(error.rule, 0) + 1
        if all(other.errors[0].message != error.errors[0].message for other in self.errors[-50:]):
            self.errors.append(error)


@dataclass(frozen=True)
class _Option:
    """A combination: its least seconds, the update, where both run, and generation."""

    least_s: float
    update: Update
    placement: Placement
    offload: tuple[Offload, ...]
    generation: GenerationPart


@dataclass(frozen=True)
class _Split:
    """Cards that generate beside those that train, and how they may."""

    placement: Placement
    npus: int
    generations: list[GenerationPart]

    @property
    def fastest_s(self) -> float:
        """Seconds of generation at least."""
        return min(map(_least_generation_s, self.generations))

    def least_s(self, training_s: float) -> float:
        """Seconds of a step at least whose training takes at least so many."""
        return min(_least_step_s(self.placement, part, training_s) for part in self.generations)


class RlSearch:
    """One search of a spec."""

    def __init__(self, spec: Spec, profile: Profile, cards: int, updates: LayoutSearch, stop: Deadline) -> None:
        assert spec.training.rl is not None
        self.spec, self.profile, self.cards, self.stop = spec, profile, cards, stop
        self.updates = updates
        self.rl = spec.training.rl
        self.found = RlResult()
        self.launchable = Launchable(spec, profile, cards, self.found.refused)
        self._layouts_of_update = Updates(spec, profile, self.launchable, self.found.refused)
        self.overheads = overheads_of(spec.search.target)
        self.searched: dict[int, UpdateLayouts] = {}
        self._layouts_of: dict[int, list[GenerationLayout]] = {}
        self._fastest_s: dict[int, float] = {}
        self._updates: dict[int, list[Update]] = {}
        self._least_s: dict[int, float] = {}
        self._parts: dict[_Asked, GenerationPart | None] = {}
        self._best: dict[tuple[object, ...], Choice] = {}  # of each outline and update
        self._fastest: dict[tuple[object, ...], float] = {}  # of each outline

    def run(self) -> RlResult:
        """The best choices of all placements."""
        refuse_unknown_precision(self.spec, self.profile)
        self.found.errors += (never := self.launchable.step())
        if never:
            return self.found
        all_placements = placements(self.spec.search)
        whole = math.inf
        split: list[_Split] = []
        if "colocated" in all_placements:
            self._search_updates(self.cards)
            self._put_together(self._colocated())
            whole = self._least_colocated_s()
        for placement in all_placements:
            if placement != "colocated" and self.cards > 1:
                splits_of_placement = self._splits(placement)
                split += splits_of_placement
                self._put_together(self._beside(placement, self._worth_training(splits_of_placement)))
        self.found.choices = self._ranked()
        least = self._least_of_all_s(whole, split) if self.found.choices else math.inf
        if math.isfinite(least):
            self.found.bound_s = min(least, min(each.step.step_time_s for each in self.found.choices))
        return self.found

    # -- updates -------------------------------------------------------------------------------------------------

    def _search_updates(self, npus: int) -> None:
        if npus in self.searched:
            return
        self.launchable.count_replicas(npus)
        searched = search_updates(self.spec, npus, self.updates, shared=npus == self.cards)
        self._updates.clear()  # of other cards too: they take these layouts as well
        self.searched[npus] = searched
        self.found.enumerated += searched.enumerated
        if not searched.strategies:
            hint = Message("rl_planning.relax_search")
            reasons = searched.why or (Message("rl_planning.update_exceeds_cards", count=npus),)
            self.found.refused["update"] = self.found.refused.get("update", 0) + max(1, searched.enumerated)
            self.found.errors += [SpecError(why, path="/training", hint=hint) for why in reasons]

    def _updates_on(self, npus: int) -> list[Update]:
        if npus not in self._updates:
            unique = {repr(s): s for each in self.searched.values() for s in each.strategies}
            updates = self._layouts_of_update.on(npus, list(unique.values()))
            self._fastest_s[npus] = min((each.part.training_s for each in updates), default=math.inf)
            terms = self.spec.search.risk_terms
            floor = terms.floor if terms.rule == "averse" else 0.0
            order = sorted(undominated(updates), key=lambda each: each.p_fits < floor)
            firsts = list(dict.fromkeys(each.degrees for each in order))[:AT_ONCE]
            self._updates[npus] = [each for each in order if each.degrees in firsts]
        return self._updates[npus]

    def _least_on_s(self, npus: int) -> float:
        """Seconds that training takes at least on cards that were searched, launched by the target."""
        gap = self.searched[npus].gap
        return 0.0 if gap is None or not self._updates_on(npus) else self._fastest_s[npus] * (1.0 - gap)

    def _near(self, trainers: int) -> int:
        """The number of cards that were searched and is nearest to so many."""
        return min(self.searched, key=lambda n: abs(math.log(n / trainers)))

    def _worth_training(self, split: list[_Split]) -> list[_Split]:
        """Those on which a step may be among the best, if fewer cards train no better each than those searched do.

        Asynchronous ones all are, as what they gain or cost is told.
        """
        enough_s = self._enough_s()
        if not split or split[0].placement == "async" or not math.isfinite(enough_s):
            return split

        def hope_s(each: _Split) -> float:
            trainers = self.cards - each.npus
            near = self._near(trainers)
            training_s = self._least_on_s(near) * max(1.0, near / trainers)
            return each.least_s(self.overheads.step_s + training_s)

        return [each for each in split if hope_s(each) <= enough_s]

    def _least_of_all_s(self, whole: float, split: list[_Split]) -> float:
        """Seconds that a step takes at least, `whole` on the same cards, or beside each split's generation.

        Fewer cards never train faster than more, launch rules aside: those let some numbers of cards train and others
        not. So the bound of all cards counts where they may train in every way; where the bound of a split is least,
        its own number of trainers is searched, a few times.
        """
        if not split or self.stop():
            return whole if not split else -math.inf
        if self.cards in self.searched and self.launchable.any_replicas(self.cards):
            self._least_s[self.cards] = self._least_on_s(self.cards)

        def least(each: _Split) -> float:
            seconds = [s for trainers, s in self._least_s.items() if trainers >= self.cards - each.npus]
            return each.least_s(self.overheads.step_s + max(seconds, default=0.0))

        first, trainers = min(split, key=least), self.cards - min(each.npus for each in split)
        for _ in range(MAX_BOUND_SEARCHES):
            if least(first) >= whole or trainers in self._least_s or self.stop():
                break
            self._least_s[trainers] = least_training_s(self.spec, self.profile, trainers, self.updates)
            first = min(split, key=least)
            trainers = self.cards - first.npus
        return min(whole, least(first))

    # -- generation ----------------------------------------------------------------------------------------------

    def _layouts(self, npus: int) -> list[GenerationLayout]:
        if npus not in self._layouts_of:
            self._layouts_of[npus] = layouts_on(self.spec, self.profile, npus, self.launchable, self.found.refused)
            if not self._layouts_of[npus] and NO_DEGREE in self.found.refused:
                self._refuse_cards(npus, Message("rl_planning.generation_does_not_divide", count=npus), NO_DEGREE)
        return self._layouts_of[npus]

    def _refuse_cards(self, npus: int, why: str, rule: str) -> None:
        """Says why so many cards can't generate, and the nearest numbers that can."""
        near = near_cards(self.spec, self.profile, npus, self.cards - 1, self.launchable.divides_nodes)
        axis = "rl.generation_npus"
        hint = (
            Message("common.place", place=axis, message=joined(map(str, near), "or"))
            if near and npus < self.cards
            else Message("rl_planning.lower_rl_generation_tp")
        )
        self.found.errors.append(InfeasibleRlError(why, rule=rule, path=f"/search/fix/{axis}", hint=hint))

    def _generations(self, cases: Sequence[Case]) -> list[GenerationPart]:
        """Generation in all cases by every layout of their cards, those that fit."""
        by_cards: dict[int, list[Case]] = {}
        for case in dict.fromkeys(cases):
            by_cards.setdefault(case.npus, []).append(case)
        asked = [(layout, case) for npus, mine in by_cards.items() for layout in self._layouts(npus) for case in mine]
        made = self._generated([each for each in asked if each not in self._parts])
        for each, new in made.items():
            if isinstance(new, InfeasibleRlError):
                self.found.refuse(new)
            self._parts[each] = None if isinstance(new, InfeasibleRlError) else new
        return [part for each in asked if (part := self._parts.get(each)) is not None]

    def _generated(self, asked: Sequence[_Asked]) -> dict[_Asked, GenerationPart | InfeasibleRlError]:
        """Generation by each layout in its case, in order; in a hurry not of all."""
        alike: dict[GenerationLayout, list[_Asked]] = {}
        for each in asked:
            alike.setdefault(limited_alike(each[0]), []).append(each)
        made: dict[_Asked, GenerationPart | InfeasibleRlError] = {}
        for requests in alike.values():
            if self.stop():
                break
            parts = generations(
                self.spec.model, self.profile, self.spec.cluster, self.rl, requests, overheads=self.overheads
            )
            made.update(zip(requests, parts, strict=True))
        return {each: made[each] for each in asked if each in made}

    # -- placements ----------------------------------------------------------------------------------------------

    def _colocated(self) -> list[_Option]:
        ways = [
            (update, offload, Case(self.cards, update.part.left_bytes(offload), 0, partial))
            for update in self._updates_on(self.cards)
            for offload in offloads(self.spec.search)
            for partial in partials(self.spec.search)
        ]
        by_case: dict[Case, list[GenerationPart]] = {}
        for part in self._generations([case for _, _, case in ways]):
            by_case.setdefault(part.case, []).append(part)
        return [
            _Option(update.part.training_s + part.generation_s, update, "colocated", offload, part)
            for update, offload, case in ways
            for part in by_case.get(case, ())
        ]

    def _least_colocated_s(self) -> float:
        cases = [Case(self.cards, 0.0, 0, partial) for partial in partials(self.spec.search)]
        least = min((part.generation_s for part in self._generations(cases)), default=math.inf)
        return self.overheads.step_s + self._least_on_s(self.cards) + least

    def _splits(self, placement: Placement) -> list[_Split]:
        """Numbers of cards that may generate beside the others, with all that generates on them."""
        search = self.spec.search
        ways = [(staleness, partial) for staleness in stalenesses(search, placement) for partial in partials(search)]
        counts = values_left(search, "rl.generation_npus", splits(self.cards, self.profile))
        shares = [int(npus) for npus in counts if self._may_generate(int(npus))]
        cases = [Case(npus, 0.0, staleness, partial) for npus in shares for staleness, partial in ways]
        by_cards: dict[int, list[GenerationPart]] = {}
        for part in self._generations(cases):
            by_cards.setdefault(part.case.npus, []).append(part)
        return [_Split(placement, npus, parts) for npus, parts in by_cards.items()]

    def _beside(self, placement: Placement, split: list[_Split]) -> list[_Option]:
        """Choices of both on cards of their own."""
        if not split:
            return []
        fastest = {each.npus: each.fastest_s for each in split}
        generations = {each.npus: each.generations for each in split}
        if not self.searched:
            self._search_updates(self.cards - sorted(fastest)[len(fastest) // 2])
        order = self._promising(placement, fastest)
        self._search_updates(self.cards - order[0])
        order = self._promising(placement, fastest)
        self._search_updates(self.cards - order[0])
        return [
            _Option(_joined(placement, update.part.training_s, _least_generation_s(part)), update, placement, (), part)
            for npus in order[:MAX_SOLVED_SPLITS]
            for update in self._updates_on(self.cards - npus)
            for part in generations[npus]
        ]

    def _may_generate(self, npus: int) -> bool:
        """Whether so many cards may generate beside the others; if not, why."""
        if not 0 < npus < self.cards:  # of several that a spec allows; a single one is refused where it stands
            return False
        if not self.launchable.split(npus):
            per_node = self.profile.npus_per_node
            why = Message("rl_planning.shared_nodes", npus=npus, cards=self.cards, per_node=per_node)
            self._refuse_cards(npus, why, WHOLE_NODES)
            return False
        return True

    def _promising(self, placement: Placement, fastest: dict[int, float]) -> list[int]:
        """Cards that generate, the best estimate first: training scales with the cards from the nearest search."""

        def step_s(npus: int) -> float:
            trainers = self.cards - npus
            near = self._near(trainers)
            updates = self._updates_on(near)
            seconds = updates[0].part.training_s * near / trainers if updates else math.inf
            return _joined(placement, seconds, fastest[npus])

        return sorted(fastest, key=lambda npus: (step_s(npus), npus))

    # -- together ------------------------------------------------------------------------------------------------

    def _put_together(self, options: list[_Option]) -> None:
        """Choices of one placement: in the order of their bounds, until none that is left can be among the best."""
        self.found.enumerated += len(options)
        seconds: list[float] = []
        for option in sorted(options, key=lambda each: each.least_s):
            if seconds and (self.stop() or option.least_s > self._enough_s()):
                break
            choice = self._choice(option)
            if choice is None:
                continue
            seconds.append(choice.step.step_time_s)
            self._fastest[choice.outline] = min(seconds[-1], self._fastest.get(choice.outline, math.inf))
            best_alike = self._best.get(choice.of_update)
            if best_alike is None or _order(choice) < _order(best_alike):
                self._best[choice.of_update] = choice
        if seconds:
            self.found.best_of[options[0].placement] = min(seconds)

    def _enough_s(self) -> float:
        """Seconds beyond which no step is wanted: it is nobody's best, or more of the best are known than are wanted;
        infinite where too few are known.
        """
        top_k, ranked = self.spec.search.top_k, sorted(self._fastest.values())
        if len(ranked) < top_k:
            return math.inf
        kept = KEPT_PER_PLAN * top_k
        most_s = ranked[kept - 1] if len(ranked) >= kept else math.inf
        return max(ranked[top_k - 1], min(most_s, (1.0 + MAX_SLOWDOWN) * ranked[0]))

    def _ranked(self) -> list[Choice]:
        """The choices, the best first."""
        ranked_choices = sorted(self._best.values(), key=_order)
        first = ranked_choices[: self.spec.search.top_k]
        return sorted((*map(self._thrifty, first), *ranked_choices[self.spec.search.top_k :]), key=_order)

    def _thrifty(self, choice: Choice) -> Choice:
        """The choice without memory of the engine that makes no step shorter."""
        for layout in thriftier(self.spec, choice.layout.generation):
            case = choice.generation.case
            part = self._generated([(layout, case)]).get((layout, case))
            if part is None or isinstance(part, InfeasibleRlError):
                continue
            how = choice.layout
            thrifty = self._choice(_Option(0.0, choice.update, how.placement, how.offload, part))
            if thrifty is not None and thrifty.step.step_time_s <= choice.step.step_time_s * (1.0 + 1e-9):
                return thrifty
        return choice

    def _choice(self, option: _Option) -> Choice | None:
        beside = option.placement != "colocated"
        case = option.generation.case
        layout = RlStrategy(
            placement=option.placement,
            generation_npus=case.npus if beside else None,
            generation=option.generation.layout,
            staleness=case.staleness,
            partial_rollout=case.partial,
            offload=option.offload,
            pack_tokens=option.update.pack_tokens,
        )
        if not self.launchable.whole(option.update.strategy, layout):
            return None
        self.found.combined += 1
        try:
            step = combined(
                option.update.part,
                option.generation,
                self.rl,
                layout,
                profile=self.profile,
                cluster=self.spec.cluster,
                overheads=self.overheads,
            )
        except InfeasibleRlError as error:
            self.found.refuse(error)
            return None
        limit = self.spec.search.memory_limit_gib
        if limit is not None and max(step.peak_memory_bytes.values()) > limit * 2.0**30:
            self.found.refused["memory_limit_gib"] = self.found.refused.get("memory_limit_gib", 0) + 1
            return None
        return Choice(option.update, option.generation, layout, step)


def _least_generation_s(part: GenerationPart) -> float:
    return part.generation_s if part.ahead_s is None else min(part.generation_s, part.ahead_s)


def _least_step_s(placement: Placement, part: GenerationPart, training_s: float) -> float:
    """Seconds of a step whose training takes at least `training_s`, and whose hand-over takes none."""
    if placement != "async":
        return training_s + part.generation_s
    generation, training = part.generation_s, {"training": training_s}
    return float(asynchronous(generation, 0.0, training, 1.0, part.case.staleness, ahead_s=part.ahead_s).step_s)


def _joined(placement: Placement, training_s: float, generation_s: float) -> float:
    """Seconds of both in turn, or beside each other."""
    return max(training_s, generation_s) if placement == "async" else training_s + generation_s


def _order(choice: Choice) -> tuple[float, float, str]:
    """Faster first; of equally fast ones the one that takes less memory."""
    return (round(choice.step.step_time_s, 9), choice.peak_bytes, choice.layout.model_dump_json())
