"""plan(spec) -> PlanSet: the whole way from a spec to ranked plans, and what that way will take."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from autodeploy.costs.inputs.build_context import choice_context
from autodeploy.costs.training_run.checkpoints import refuse_unsaved
from autodeploy.costs.training_run.run_estimate import phases_of
from autodeploy.kit.deadline import Deadline
from autodeploy.kit.errors import FieldError, SearchCancelled, SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.candidate import with_placements
from autodeploy.search.branch_and_bound.least_memory import least_memory
from autodeploy.search.branch_and_bound.search_space import SearchSpace, refuse_enormous, search_space
from autodeploy.search.branch_and_bound.search_space import search_size as size_of_search
from autodeploy.search.choices.effort import cores
from autodeploy.search.predictions import with_run
from autodeploy.search.prepared import Undescribed, at_size, budget_of, identity_of, prepare
from autodeploy.search.progress import Progress, SearchReporter
from autodeploy.search.ranking.advice import Adviser, from_search
from autodeploy.search.ranking.cost_of_target import price_of_target
from autodeploy.search.ranking.expected_cost import price_of
from autodeploy.search.ranking.infeasible import best_batch
from autodeploy.search.ranking.plans import strategy_of_solved
from autodeploy.search.ranking.reference_plans import ReferencePlans
from autodeploy.search.ranking.search_result import Outcome, SearchLabel, finish, layouts_found, no_plan_in_time
from autodeploy.search.ranking.selection import chosen, weight_of
from autodeploy.search.run_planning import OBJECTIVE, plan_time_to_train, spare_rows
from autodeploy.specs.planset import Unrestricted
from autodeploy.specs.spec import spec_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.search.branch_and_bound.search_space import SearchSize
    from autodeploy.search.ranking.advice import Advice
    from autodeploy.search.ranking.counterfactuals import Step
    from autodeploy.search.ranking.one_strategy import Prepared
    from autodeploy.search.ranking.search_result import LayoutsFound
    from autodeploy.specs.planset import Infeasible, Plan, PlanSet
    from autodeploy.specs.spec import Spec

Found = TypeVar("Found")


def plan(
    spec: Spec,
    *,
    search_id: str = "",
    created_at: str = "",
    progress: Callable[[Progress], None] | None = None,
    should_cancel: Callable[[], bool] | None = None,
    alone: bool = False,
    first: bool = False,
    of: Spec | None = None,
) -> PlanSet:
    """Search the strategies of a spec and return the best, ranked and explained.

    of : the spec that plans are named after, where this one is a part of it.
    alone : only the ranked plans, for a caller that reads nothing else: half the proof, nothing to compare them with,
        no other batches or cards that would divide better, no reason why nothing fits.
    first : only the first of them, of a spec that fixes nearly all degrees: alone, without a proof, and what is weighed
        are plans that the search itself made.

    Raises SpecError if the spec asks for something that can't be planned. An infeasible spec is a result.
    """
    started = time.monotonic()
    stop = Deadline(should_cancel, started, spec.search.time_limit_s)
    label = SearchLabel(search_id, created_at, started)
    if spec.training.rl is not None:
        if spec.search.spare_nodes:
            why = Message("planner.no_spare_post_training")
            raise UnsupportedError(why, path="/search/spare_nodes", hint=Message("common.leave_it_out"))
        # A tenth of a second, for post-training alone.
        from autodeploy.search.post_training.planning import plan_post_training

        return plan_post_training(spec, UpdateSearch(stop), stop, label)
    if spec.search.objective == OBJECTIVE and phases_of(spec):
        part = partial(plan, progress=progress, should_cancel=stop)
        planned = plan_time_to_train(spec, part, stop, search_id=search_id, created_at=created_at, started=started)
        return _with_spares(spec, planned, stop)
    return plan_pre_training(spec, stop, label, progress=progress, alone=alone or first, first=first, of=of)


def plan_pre_training(
    spec: Spec,
    stop: Deadline,
    label: SearchLabel,
    *,
    progress: Callable[[Progress], None] | None = None,
    alone: bool = False,
    first: bool = False,
    of: Spec | None = None,
) -> PlanSet:
    """The best strategies of a step of pre-training or fine-tuning, ranked and explained; as `plan`."""
    started = label.started
    _check_phases(spec)
    prepared = _ended(lambda: with_best_batch(prepare(spec)), spec, stop, alone=alone)
    refuse_unsaved(spec, prepared.profile.vendor)
    if of is not None:
        prepared = replace(prepared, identity=replace(prepared.identity, spec_hash=spec_hash(of)))
    explored = _look(prepared, spec, stop, started, progress, alone=alone, first=first)
    searched, frontier, report = explored.searched, explored.frontier, explored.report
    price = stop.search(lambda: _price_of_target(prepared, frontier, stop)) or Unrestricted()
    advice, steps = _advice(prepared, searched, frontier, stop, alone=alone, first=first)
    beside = ReferencePlans(prepared.spec, prepared.profile, prepared.context, prepared.identity, stop)
    outcome = Outcome(searched, frontier, price, advice, None if alone else beside, steps, only_first=first)
    result = finish(prepared, outcome, replace(label, enumerated_s=explored.enumerated_s), stop)
    if stop.out_of_time and not result.plans and not alone:
        raise no_plan_in_time(spec)
    result = _with_runs(prepared, result, stop)
    result = result if alone else _with_spares(prepared.spec, result, stop)
    report.finished(result)
    return result


@dataclass(frozen=True)
class UpdateSearch:
    """Searches layouts of an update of post-training, given as a spec of pre-training, until `stop` says so."""

    stop: Deadline

    def layouts(self, spec: Spec) -> LayoutsFound:
        """The strategies of `plan(spec, alone=True)`.

        Raises SpecError as `plan`.
        """
        prepared, explored, advice = _found_alone(spec, Deadline(self.stop, time.monotonic(), spec.search.time_limit_s))
        return layouts_found(prepared, explored.searched, explored.frontier, advice)

    def why_none(self, spec: Spec) -> Infeasible | None:
        """Why there are none.

        Raises SpecError as `plan`.
        """
        return plan(spec, should_cancel=self.stop).infeasible


def first_plan(spec: Spec) -> Undescribed | PlanSet:
    """The first of the plans of `plan(spec, first=True)` without what is predicted of it, for a caller that describes
    it in another context; that answer where there is none.

    Raises SpecError as `plan`.
    """
    label = SearchLabel("", "", time.monotonic())
    stop = Deadline(None, label.started, spec.search.time_limit_s)
    prepared, explored, advice = _found_alone(spec, stop, first=True)
    ranked, _ = chosen(explored.frontier, advice, spec.search)
    if not ranked:
        outcome = Outcome(explored.searched, explored.frontier, Unrestricted(), advice, only_first=True)
        return finish(prepared, outcome, replace(label, enumerated_s=explored.enumerated_s), stop)
    one = ranked[0]
    return Undescribed(
        strategy_of_solved(one, explored.frontier.solver), one.context.num_npus, int(one.candidate.micro_batches[0])
    )


def _found_alone(spec: Spec, stop: Deadline, *, first: bool = False) -> tuple[Prepared, _Exploration, Advice | None]:
    """A search for a caller that reads strategies alone; `first` as of `plan`."""
    started = time.monotonic()
    prepared = with_best_batch(prepare(spec))
    refuse_unsaved(spec, prepared.profile.vendor)
    explored = _look(prepared, spec, stop, started, None, alone=True, first=first)
    advice, _ = _advice(prepared, explored.searched, explored.frontier, stop, alone=True, first=first)
    return prepared, explored, advice


@dataclass(frozen=True)
class _Exploration:
    """A space, the best of it, and who tells of it. enumerated_s : until the space was known."""

    searched: SearchSpace
    frontier: SearchState
    report: SearchReporter
    enumerated_s: float


def _look(
    prepared: Prepared,
    spec: Spec,
    stop: Deadline,
    started: float,
    progress: Callable[[Progress], None] | None,
    *,
    alone: bool,
    first: bool = False,
) -> _Exploration:
    """The space of a spec, and the best of it."""
    choice, context = prepared.choice, prepared.context
    searched = _ended(
        lambda: search_space(prepared.spec, prepared.profile, choice, context, stop), spec, stop, alone=alone
    )
    enumerated_s = time.monotonic() - started
    report = SearchReporter(progress, started, searched, prepared.identity.ratio, stop)
    report.enumerated()
    frontier = stop.search(lambda: _best(spec, searched, report, stop, alone=alone, first=first)) or report.so_far()
    return _Exploration(searched, frontier, report, enumerated_s)


def _ended(part: Callable[[], Found], spec: Spec, stop: Deadline, *, alone: bool) -> Found:
    """Result of a part that plans need; a caller that asks for plans alone is in no such hurry."""
    result = part() if alone else stop.search(part)
    if result is not None:
        return result
    raise no_plan_in_time(spec) if stop.out_of_time else SearchCancelled


def _best(
    spec: Spec, searched: SearchSpace, report: SearchReporter, stop: Deadline, *, alone: bool, first: bool
) -> SearchState:
    """The best of the candidates and what is proven of the others."""
    kept = from_search(spec.search.top_k)
    # Of nearly fixed degrees there is less to do than a second process costs.
    parallel = cores() > 1 and not first
    search = least_memory if _for_memory(spec) else partial(best_first, parallel=parallel, keep=kept)
    asked, budget = spec.search, budget_of(spec, alone=alone)
    budget = replace(budget, paths=0) if first else budget
    frontier = search(searched.request(asked.top_k, asked.gap, budget, watch=report.solved, should_cancel=stop))
    if spec.search.distinct == "placements":
        frontier.best = with_placements(frontier.best, spec.search.top_k, stop)
    return frontier


def _advice(
    prepared: Prepared,
    searched: SearchSpace,
    frontier: SearchState,
    stop: Deadline,
    *,
    alone: bool,
    first: bool = False,
) -> tuple[Advice | None, Sequence[Step]]:
    """The ranking by risk, where the spec wants one and there is something to rank: however short the time is.

    With the steps of the first plan's axes of which there are plans, unless `alone`.
    """
    spec = prepared.spec
    if not frontier.best or _for_memory(spec):
        return None, ()
    neutral = spec.search.risk_terms.rule == "neutral"
    if neutral and alone:
        return None, ()
    hurried = stop.weigh()
    weight = partial(weight_of, objective=spec.search.objective)
    price = price_of(spec, frontier.best[0].solution.step_s)
    adviser = Adviser(
        prepared.profile, searched, frontier, spec.search.top_k, budget_of(spec, alone=alone), weight, price, stop
    )
    stepping = not alone and not hurried
    if neutral:
        frontier.best = stop.search(partial(adviser.by_prediction, stepping=stepping)) or frontier.best
        return None, adviser.steps
    advice = stop.search(partial(adviser.advise, hurried=hurried or first, stepping=stepping)) or adviser.so_far
    return advice, adviser.steps


def _price_of_target(prepared: Prepared, frontier: SearchState, stop: Deadline) -> Unrestricted:
    """Cost of the launch target's rules: a second search, for specs that ask for more than the usual effort."""
    spec = prepared.spec
    if frontier.cancelled or _for_memory(spec) or budget_of(spec).quick <= budget_of(_usual(spec)).quick:
        return Unrestricted()
    price = price_of_target(spec, prepared.profile, prepared.choice, frontier, budget_of(spec), stop)
    best = price.best_step_time_s
    return price if best is None else price.model_copy(update={"best_step_time_s": prepared.identity.ratio * best})


def _for_memory(spec: Spec) -> bool:
    return spec.search.objective == "peak_memory"


def _with_runs(prepared: Prepared, result: PlanSet, stop: Deadline) -> PlanSet:
    """The plans with what the run of weeks takes under each, as far as there is time for it."""
    searched: dict[tuple[int, int], tuple[Plan, ...]] = {}

    def layouts_for(seq_length: int, global_batch: int) -> tuple[Plan, ...]:
        key = (seq_length, global_batch)
        if key not in searched:
            spec = at_size(prepared.spec, seq_length, global_batch)
            search = spec.search.model_copy(update={"top_k": 1, "effort": "fast"})
            searched[key] = plan(spec.model_copy(update={"search": search}), should_cancel=stop, alone=True).plans
        return searched[key]

    plans = []
    for each in result.plans:
        plan_with_run = stop.describe(partial(with_run, prepared, each, layouts_for))
        plans.append(each if plan_with_run is None else plan_with_run)
    without = sum(1 for each in plans if each.run is None)
    if without and stop.interrupted and phases_of(prepared.spec):
        note = Message("planner.runs_not_computed", without=without, plans=len(plans))
        result = result.model_copy(update={"warnings": (*result.warnings, note)})
    return result.model_copy(update={"plans": tuple(plans)})


def _with_spares(spec: Spec, result: PlanSet, stop: Deadline) -> PlanSet:
    """The plans with some nodes fewer, where the spec asks for them."""
    if not result.plans or not spec.search.spare_nodes:
        return result
    rows = spare_rows(spec, result.plans[0], partial(plan, should_cancel=stop, alone=True), stop)
    return result.model_copy(update={"spares": rows})


def with_best_batch(prepared: Prepared) -> Prepared:
    """On the batch that the spec's tolerance allows and that trains fastest."""
    spec = prepared.spec
    if not spec.training.global_batch_size.tolerance_pct:
        return prepared
    batch = best_batch(spec, prepared.profile, prepared.context)
    context = choice_context(spec, prepared.profile, prepared.choice, global_batch=batch)
    return replace(prepared, context=context, identity=identity_of(spec, prepared.profile, context))


def _usual(spec: Spec) -> Spec:
    return spec.model_copy(update={"search": spec.search.model_copy(update={"effort": "default"})})


def check_space(spec: Spec) -> None:
    """Raises where a search of the spec would be refused, without searching.

    Raises SpecError as `prepare`, and if there would be too many candidates.
    """
    prepared = prepare(_of_update(spec))
    refuse_enormous(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    refuse_unsaved(prepared.spec, prepared.profile.vendor)
    _check_phases(prepared.spec)


def _of_update(spec: Spec) -> Spec:
    """The spec of what is searched: of post-training its update."""
    if spec.training.rl is None:
        return spec
    from autodeploy.search.post_training.update_layouts import update_spec

    return update_spec(spec)


def _check_phases(spec: Spec) -> None:
    """The same of every phase that is searched for a layout of its own."""
    if spec.run is None or spec.run.layout_changes != "allowed":
        return
    own = spec.training.seq_length, spec.training.global_batch_size.value
    sizes = [(phase.seq_length, phase.stretches[-1].global_batch) for phase in phases_of(spec)]
    for size in dict.fromkeys(each for each in sizes if each != own):
        at = prepare(at_size(spec, *size))
        try:
            refuse_enormous(at.spec, at.profile, at.choice, at.context)
        except SpecError as error:
            place = f"/run/phases/{sizes.index(size)}"
            raise SpecError(errors=tuple(FieldError(place, e.message, e.hint) for e in error.errors)) from error


def search_size(spec: Spec) -> SearchSize:
    """Size of the spec's search, which its time depends on, counted without searching; errors as `prepare`."""
    prepared = prepare(_of_update(spec))
    return size_of_search(prepared.spec, prepared.profile, prepared.choice, prepared.context)


def fastest_s(spec: Spec) -> float | None:
    """Step time of the spec's fastest strategy as the sweep estimates it, before any is solved; None where none fits.

    Raises SpecError as `plan`.
    """
    prepared = prepare(spec)
    fastest = search_space(spec, prepared.profile, prepared.choice, prepared.context).swept.fastest_s
    return None if fastest is None else fastest * prepared.identity.ratio
