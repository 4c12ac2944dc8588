"""Plans beside those of a search: the reference, and those of other sizes."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autodeploy.calibration.evidence import FEATURE, proven_values
from autodeploy.costs.inputs.build_context import choice_context
from autodeploy.costs.layers.unit_costs import closed
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import estimate_layout
from autodeploy.costs.steps.one_strategy import facts_of_placement, layout_of
from autodeploy.messages import Message
from autodeploy.search.branch_and_bound.frontier import SearchRequest
from autodeploy.search.branch_and_bound.least_memory import RoomyPlans
from autodeploy.search.branch_and_bound.search_space import legal_tree, of_sizes, space_of, swept_tree
from autodeploy.search.choices.effort import budget
from autodeploy.search.ranking.adapted_strategy import Adaptation, moved
from autodeploy.search.ranking.advice import first_of_each
from autodeploy.search.ranking.infeasible import NearRates, near_rates
from autodeploy.search.ranking.plans import Identity, fits, plan_of_estimate, plans_of_solved, strategy_of
from autodeploy.search.ranking.public_recipes import PublicRecipe, features_of, recipes_for
from autodeploy.search.ranking.uncertainty import memory_spread_of, roomy_limit_bytes, slopes_of
from autodeploy.search.ranking.unproven import unproven_axes
from autodeploy.space.candidates import DISPATCHERS
from autodeploy.space.feature_choice import always_on, choice_of
from autodeploy.space.rules import broken_rules
from autodeploy.specs.search import Axis, AxisValue, SearchSpec, Switch
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import UNRESTRICTED, title_of
from cost_models.schedule import SCHEDULES, plain

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.unit_costs import UnitCosts
    from autodeploy.kit.deadline import Deadline
    from autodeploy.search.ranking.plans import Identity
    from autodeploy.space.candidates import Candidates
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile


# Where nobody published a recipe: the best plan of what runs have shown, which fits with 90 % and swaps nothing.
SWAPS: Final = ("selective_swap", "swap_attention", "swap_optimizer", "virtual_optimizer")
DEGREES: Final[tuple[Axis, ...]] = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
MOST_MADE: Final = 4
"""Plans that are made: of the candidates that look fastest, one of each outer strategy."""


def proven_start(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    """The fastest plan whose degrees, schedule, dispatcher and features runs on chips of the family have.

    It obeys the target's rules, not what the spec fixes or asks of its plans; where cards may stay idle, on the number
    of cards that is fastest. None where there is none.
    """
    choice = choice_of(spec, profile)
    sizes = of_sizes(spec, profile, choice, context)
    found = [plan for each in sizes if (plan := _on_cards(spec, profile, each, identity)) is not None]
    return min(found, key=lambda plan: plan.step_time_s, default=None)


def _on_cards(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    family = context.family
    measured = {name: each.mechanism for name, each in FEATURES.items() if each.measured}
    off = {name for name, mechanism in measured.items() if not proven_values(family, FEATURE, [mechanism])} | {*SWAPS}
    off -= always_on(spec.search.release(profile.vendor)) - {*SWAPS}
    search = SearchSpec(
        target=spec.search.target,
        target_release=spec.search.target_release,
        features=dict.fromkeys(sorted(off), "off"),
        memory_limit_gib=spec.search.memory_limit_gib,
    )
    choice = choice_of(spec, profile, search)
    free = spec.model_copy(update={"search": search})
    context = choice_context(free, profile, choice, num_npus=context.num_npus, global_batch=context.global_batch)
    search = search.model_copy(update={"allow": _proven_axes(search, context, profile, choice)})
    tree, _ = legal_tree(search, context, profile, choice)
    candidates = tree.candidates()
    if not len(candidates):
        return None
    room = roomy_limit_bytes(context.limit_bytes, memory_spread_of(candidates.take(slice(1)), context))
    swept, features = swept_tree(tree, replace(context, limit_bytes=room)), closed(context)
    rows = np.flatnonzero(np.isfinite(swept.sweep.after_recompute_s))
    rows = rows[unproven_axes(candidates.take(rows), context) == 0] if len(rows) else rows
    if not len(rows):
        return None
    kept = candidates.take(rows)
    used = swept.used[rows]
    request = SearchRequest(
        kept,
        swept.sweep.take(rows),
        lambda index: features[int(used[index])],
        1,
        0.0,
        budget(search),
        swept.costs.take(rows),
    )

    def limit_bytes(index: int) -> float:
        used = request.contexts(index)
        return roomy_limit_bytes(used.limit_bytes, memory_spread_of(kept.take(slice(index, index + 1)), used))

    picks = first_of_each(np.arange(len(rows)), request.swept.after_recompute_s, request.outer, MOST_MADE)
    made = RoomyPlans(request, limit_bytes).plans(picks)
    for solved in sorted(made, key=lambda each: (each.solution.step_s, each.index)):
        (plan,) = plans_of_solved([solved], spec, identity)
        facts = {**solved.context.facts, **facts_of_placement(plan.strategy)}
        if not any(rule.is_told for rule in broken_rules(solved.candidate, facts, search.target)[0]):
            return plan
    return None


def _proven_axes(
    search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice
) -> dict[Axis, tuple[AxisValue, ...]]:
    """Values of the axes that runs have; an axis of which none has any stays free."""
    space, family = space_of(search, context, profile, choice), context.family
    values: dict[Axis, list[Any]] = {
        axis: proven_values(family, axis, [int(value) for value in getattr(space, axis)]) for axis in DEGREES
    }
    values["schedule"] = [plain(1).name, *proven_values(family, "schedule", [SCHEDULES[n] for n in space.schedule])]
    if context.model.is_moe:
        names = [DISPATCHERS[number] for number in space.moe_dispatcher]
        values["moe_dispatcher"] = proven_values(family, "moe_dispatcher", names)
    return {axis: tuple(dict.fromkeys(some)) for axis, some in values.items() if some}


# Where nobody published a recipe.
MOST_TRIED = 60
PLAIN_FEATURES: dict[str, Switch] = {
    "adaptive_pipe": "off",
    "hierarchical_a2a": "off",
    "selective_recompute": "off",
    "swap_optimizer": "off",
    "virtual_optimizer": "off",
}


def baseline_1f1b(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    """1F1B with full recompute, micro batch 1 and even layers, at the smallest TP x PP that fits.

    Experts are spread over one node. Where cards may stay idle and all of them have no such strategy, on fewer. None
    where there is none.
    """
    plan = _baseline_1f1b_on(spec, profile, context, identity)
    if plan is not None or spec.cluster.use != "at_most":
        return plan
    choice = choice_of(spec, profile)
    _, *fewer = of_sizes(spec, profile, choice, context)
    starts = (_baseline_1f1b_on(spec, profile, each, identity) for each in fewer)
    return next((plan for plan in starts if plan is not None), None)


def _baseline_1f1b_on(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    search = SearchSpec(
        target=spec.search.target,
        target_release=spec.search.target_release,
        allow={"tp": (8, 4, 2, 1), "micro_batch_size": (1,), "cp": (1,), "vpp": (1,), "schedule": (plain(1).name,)},
        features=PLAIN_FEATURES,
    )
    choice = choice_of(spec, profile, search)
    first, *others = (
        replace(each, features=each.features - set(PLAIN_FEATURES), facts=_unasked(each)) for each in closed(context)
    )
    context = replace(first, alternatives=tuple(others))
    tree, _ = legal_tree(search, context, profile, choice)
    legal = tree.candidates()
    swept, features = swept_tree(tree, context), closed(context)
    order = _preference(legal, context)
    able = order[swept.sweep.least_bytes[order] <= context.limit_bytes]
    for index in able[:MOST_TRIED].tolist():
        one = slice(index, index + 1)
        used = features[int(swept.used[index])]
        plan = _with_full_recompute(legal.take(one), swept.costs.of(one), used, spec, identity)
        if plan is not None:
            return plan
    return None


def _unasked(context: Context) -> dict[str, object]:
    """Facts without what the spec asks of its plans."""
    return {name: False if name.startswith("asked_") else value for name, value in context.facts.items()}


def _preference(candidates: Candidates, context: Context) -> np.ndarray:
    """Whole experts, over about one node, dispatched by alltoall; then the smallest TP x PP, of equals the shortest."""
    expert = np.abs(np.log2(candidates.ep / min(16, context.model.n_routed_experts or 1)))
    return np.lexsort(
        (
            candidates.moe_dispatcher,
            candidates.reuse_fp32_param.astype(np.int64),
            candidates.pp,
            candidates.tp * candidates.pp,
            expert,
            candidates.etp != 1,
        )
    )


def _with_full_recompute(
    candidate: Candidates, costs: UnitCosts, context: Context, spec: Spec, identity: Identity
) -> Plan | None:
    """The candidate's plan; None where it does not fit."""
    classes = step_classes(costs, candidate, context)
    strategy = Strategy(pp=int(candidate.pp[0]), recompute=Recompute(granularity="full"))
    layout = layout_of(strategy, tuple(c.count for c in classes.layers))
    estimate = estimate_layout(Priced(classes, candidate, context), layout)
    if not fits(estimate, context):
        return None
    strategy, slopes = strategy_of(candidate, context, layout), slopes_of(candidate, context, [layout])[0]
    return plan_of_estimate(estimate, strategy, candidate, classes, context, layout, spec, identity, slopes)


# What stands beside the plans for comparison.
PUBLIC_RECIPE: Final = "public recipe"
YOUR_SCRIPT: Final = "your script"
PROVEN: Final = "proven features"
PLAIN: Final = "1F1B"
# Recipes of one model that are moved until one starts.
MOST_RECIPES = 2
# A recipe is for its sequence length and for others up to so many doublings away.
LENGTH_DOUBLINGS = 1.0


def reference_plan(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    """The plan that a better one has to be better than, with its label and in `explanation` where it is from.

    The framework's public recipe for the model on chips of the family, moved to the spec's cards and batch; else the
    spec's own strategy; else the best plan of what runs on such chips have shown, without swaps, that fits with 90 %;
    else 1F1B at the smallest TP x PP that fits. It obeys the launch target, not what the spec fixes or asks of its
    plans. None where nothing of it fits.
    """
    for recipe in _nearest(recipes_for(spec.model, profile), spec, context)[:MOST_RECIPES]:
        features = features_of(recipe)
        start = moved(recipe.strategy, features, context, spec, profile, identity)
        if start is not None:
            return _labelled(start, PUBLIC_RECIPE, _of_recipe(recipe))
    if spec.strategy is not None:
        named = spec.strategy.named_features
        features = context.features if named is None else named
        start = moved(spec.strategy, features, context, spec, profile, identity)
        if start is not None:
            return _labelled(start, YOUR_SCRIPT, Message("ranking.strategy_that_spec_brought"))
    proven = proven_start(spec, profile, context, identity)
    if proven is not None:
        return proven.model_copy(update={"label": PROVEN, "explanation": Message("ranking.proven_baseline")})
    plan = baseline_1f1b(spec, profile, context, identity)
    if plan is None:
        return None
    text = Message("ranking.plain_1f1b")
    return plan.model_copy(update={"label": PLAIN, "explanation": text})


def _nearest(recipes: tuple[PublicRecipe, ...], spec: Spec, context: Context) -> list[PublicRecipe]:
    """Those for a like sequence: of the target's framework first, then those whose speed is published, then those that
    deal tokens evenly last, then by number of cards and batch.
    """

    def doublings(own: int, other: int) -> float:
        return round(abs(log2(own / other)), 6)

    def far(recipe: PublicRecipe) -> tuple[bool, bool, float, bool, bool, float, float]:
        return (
            spec.search.target not in (recipe.framework, UNRESTRICTED),
            spec.training.precision != recipe.precision,
            doublings(spec.training.seq_length, recipe.seq_length),
            recipe.measured is None,
            recipe.routing_imbalance is not None,
            doublings(context.num_npus, recipe.num_npus),
            doublings(context.global_batch, recipe.global_batch_size),
        )

    near = (each for each in recipes if doublings(spec.training.seq_length, each.seq_length) <= LENGTH_DOUBLINGS)
    return sorted(near, key=far)


def _of_recipe(recipe: PublicRecipe) -> str:
    maker = title_of(recipe.framework) if recipe.framework != UNRESTRICTED else Message("ranking.publisher")
    return Message(
        "ranking.recipe_origin",
        maker=maker,
        cards=recipe.num_npus,
        batch=recipe.global_batch_size,
        length=recipe.seq_length,
        source=recipe.short_source,
    )


def _labelled(start: Adaptation, label: str, source: str) -> Plan:
    text = Message("ranking.changed_here", source=source, changes=", ".join(start.changes)) if start.changes else source
    return start.plan.model_copy(update={"label": label, "explanation": text})


class ReferencePlans:
    """Found once plans are: what is loaded by then takes them a tenth of a second or two."""

    def __init__(
        self, spec: Spec, profile: Profile, context: Context, identity: Identity, deadline: Deadline | None = None
    ) -> None:
        self._of = spec, profile, context
        self._identity, self._deadline = identity, deadline

    def result(self) -> tuple[Plan | None, NearRates]:
        """The plan to compare with, and the rates of batches and numbers of cards near the spec's; nothing of them
        where the search has to end before they are known.
        """
        found = self._found() if self._deadline is None else self._deadline.describe(self._found)
        return found or (None, NearRates({}, {}))

    def _found(self) -> tuple[Plan | None, NearRates]:
        return reference_plan(*self._of, self._identity), near_rates(*self._of)
