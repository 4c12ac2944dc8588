"""Where nobody published a recipe: 1F1B at the smallest TP x PP that fits, with every layer recomputed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.alternatives import closed
from autodeploy.evaluation.stages.step_classes import Priced, step_classes
from autodeploy.evaluation.steps.estimate import estimate_layout
from autodeploy.evaluation.steps.one_strategy import layout_of
from autodeploy.ranking.plans import Identity, fits, plan_of_estimate, strategy_of
from autodeploy.ranking.uncertainty import slopes_of
from autodeploy.solver.search_space import legal_tree, of_sizes, swept_tree
from autodeploy.specs.search import SearchSpec, Switch
from autodeploy.specs.strategy import Recompute, Strategy
from autodeploy.strategies.feature_choice import choose_features
from cost_models.schedule import plain

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.unit_costs import UnitCosts
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.candidates import Candidates
    from hardware_profiles.profile import Profile

MOST_TRIED = 60
FEATURES: dict[str, Switch] = {
    "adaptive_pipe": "off",
    "hierarchical_a2a": "off",
    "selective_recompute": "off",
    "swap_optimizer": "off",
    "virtual_optimizer": "off",
}


def plain_start(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    """1F1B with full recompute, micro batch 1 and even layers, at the smallest TP x PP that fits.

    Experts are spread over one node. Where cards may stay idle and all of them have no such strategy, on fewer. None
    where there is none.
    """
    plan = _plain_start_on(spec, profile, context, identity)
    if plan is not None or spec.cluster.use != "at_most":
        return plan
    choice = choose_features(spec.search, spec.model, profile, adapters=spec.training.lora is not None)
    _, *fewer = of_sizes(spec, profile, choice, context)
    starts = (_plain_start_on(spec, profile, each, identity) for each in fewer)
    return next((plan for plan in starts if plan is not None), None)


def _plain_start_on(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    search = SearchSpec(
        target=spec.search.target,
        target_release=spec.search.target_release,
        allow={"tp": (8, 4, 2, 1), "micro_batch_size": (1,), "cp": (1,), "vpp": (1,), "schedule": (plain(1).name,)},
        features=FEATURES,
    )
    choice = choose_features(search, spec.model, profile, adapters=spec.training.lora is not None)
    first, *others = (
        replace(each, features=each.features - set(FEATURES), facts=_unasked(each)) for each in closed(context)
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
