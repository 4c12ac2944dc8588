"""Where nobody published a recipe: the best plan of what runs have shown, which fits with 90 % and swaps nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from autodeploy.calibration.evidence import FEATURE, proven_values
from autodeploy.costs.inputs.build_context import choice_context
from autodeploy.costs.layers.unit_costs import closed
from autodeploy.costs.steps.one_strategy import facts_of_placement
from autodeploy.search.branch_and_bound.frontier import SearchRequest
from autodeploy.search.branch_and_bound.least_memory import RoomyPlans
from autodeploy.search.branch_and_bound.search_space import legal_tree, of_sizes, space_of, swept_tree
from autodeploy.search.choices.effort import budget
from autodeploy.search.ranking.advice import first_of_each
from autodeploy.search.ranking.plans import plans_of_solved
from autodeploy.search.ranking.uncertainty import memory_spread_of, roomy_limit_bytes
from autodeploy.search.ranking.unproven import unproven_axes
from autodeploy.space.candidates import DISPATCHERS
from autodeploy.space.feature_choice import always_on, choice_of
from autodeploy.space.rules import broken_rules
from autodeploy.specs.search import Axis, AxisValue, SearchSpec
from autodeploy.stack.features import FEATURES
from cost_models.schedule import SCHEDULES, plain

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.ranking.plans import Identity
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

SWAPS: Final = ("selective_swap", "swap_attention", "swap_optimizer", "virtual_optimizer")
DEGREES: Final[tuple[Axis, ...]] = ("tp", "pp", "vpp", "cp", "ep", "micro_batch_size")
MOST_MADE: Final = 6
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
    request = SearchRequest(
        candidates, swept.sweep, lambda index: features[int(swept.used[index])], 1, 0.0, budget(search), swept.costs
    )

    def limit_bytes(index: int) -> float:
        used = request.contexts(index)
        return roomy_limit_bytes(used.limit_bytes, memory_spread_of(candidates.take(slice(index, index + 1)), used))

    picks = first_of_each(rows, swept.sweep.after_recompute_s[rows], request.outer, MOST_MADE)
    made = RoomyPlans(request, limit_bytes, parallel=False).plans(picks)
    for solved in sorted(made, key=lambda each: (each.solution.step_s, each.index)):
        (plan,) = plans_of_solved([solved], spec, identity)
        if plan.strategy.swap or plan.strategy.swap_per_stage or plan.strategy.swap_optimizer:
            continue
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
