"""Why a spec has no plan, and the smallest change that gives it one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.errors import UnsupportedError
from autodeploy.evaluation.sweep.sweep import sweep_tree
from autodeploy.messages import Message
from autodeploy.ranking.legality import pins_to_lift, why_nothing_is_legal
from autodeploy.solver.search_space import Searched, legal_tree, variant
from autodeploy.specs.planset import Infeasible, NearestChange
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.stack.releases import frameworks_for
from autodeploy.strategies.feature_choice import choose_features
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.feature_choice import FeatureChoice
    from hardware_profiles.profile import Profile

GROWTH = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)


def why_infeasible(spec: Spec, profile: Profile, context: Context, searched: Searched) -> Infeasible:
    """Binding rules, and changes of the spec that the sweep says would fit, the smallest first."""
    legal = searched.counts.enumerated - sum(searched.counts.rejected.values())
    if legal == 0:
        choice = choose_features(spec.search, spec.model, profile, adapters=spec.training.lora is not None)
        return Infeasible(
            binding_rules=why_nothing_is_legal(spec.search, context, profile, choice),
            nearest=tuple(_rule_changes(spec, profile, context, choice)),
        )
    rule = missing_memory(spec, profile, context)
    return Infeasible(binding_rules=(rule,), nearest=tuple(_memory_changes(spec, profile, context)))


def missing_memory(spec: Spec, profile: Profile, context: Context) -> str:
    """What the leanest strategy needs, and what a card has."""
    least = _least_gib(spec, profile, context)
    return Message(
        "ranking.memory_with_every_layer_recomputed_leanest_strategy_still",
        needed=least,
        limit=context.limit_bytes / GIB,
    )


def _fits(spec: Spec, profile: Profile, num_npus: int, batch: int, search: SearchSpec | None = None) -> float | None:
    """Step time of the fastest candidate that fits on so many cards, or None."""
    changed = spec if search is None else spec.model_copy(update={"search": search})
    try:
        choice = choose_features(changed.search, spec.model, profile, adapters=spec.training.lora is not None)
        near = variant(changed, profile, choice, num_npus, batch)
    except UnsupportedError:  # a feature that is asked for, or a training beside what it has
        return None
    legal, _ = legal_tree(changed.search, near, profile, choice)
    if not len(legal):
        return None
    return sweep_tree(legal, near, parts=False).fastest_s


def _least_gib(spec: Spec, profile: Profile, context: Context) -> float:
    choice = choose_features(spec.search, spec.model, profile, adapters=spec.training.lora is not None)
    legal, _ = legal_tree(spec.search, context, profile, choice)
    return float(np.min(sweep_tree(legal, context, parts=False).recomputed_bytes)) / GIB if len(legal) else float("nan")


def _memory_changes(spec: Spec, profile: Profile, context: Context) -> list[NearestChange]:
    """More cards, then looser limits of the spec: only what the sweep shows to fit is named."""
    changes = []
    batch = context.global_batch
    nodes = max(1, context.num_npus // profile.npus_per_node)
    # Blocks name the nodes that there are: more of them stand in a cluster without blocks.
    larger = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"blocks": None})})
    for factor in GROWTH:
        count = int(np.ceil(nodes * factor)) * profile.npus_per_node
        seconds = _fits(larger, profile, count, batch)
        if seconds is not None:
            change = f"cluster.num_npus: {count + spec.cluster.spare_npus}"
            change += ", no cluster.blocks" if spec.cluster.blocks else ""
            changes.append(
                NearestChange(change=change, effect=Message("ranking.fits_about_s_step", step=f"{seconds:.1f}"))
            )
            break
    for change, search in _looser(spec.search):
        seconds = _fits(spec, profile, context.num_npus, batch, search)
        if seconds is not None:
            changes.append(
                NearestChange(change=change, effect=Message("ranking.fits_about_s_step", step=f"{seconds:.1f}"))
            )
    return changes


def _looser(search: SearchSpec) -> list[tuple[str, SearchSpec]]:
    """Constraints of the search that can be lifted one at a time."""
    options: list[tuple[str, SearchSpec]] = [
        (
            Message("ranking.search_fix_without", axis=axis),
            search.model_copy(update={"fix": {k: v for k, v in search.fix.items() if k != axis}}),
        )
        for axis in search.fix
    ]
    if search.memory_limit_gib is not None:
        options.append(("search.memory_limit_gib: null", search.model_copy(update={"memory_limit_gib": None})))
    if search.target != UNRESTRICTED:
        options.append((f"search.target: {UNRESTRICTED}", search.model_copy(update={"target": UNRESTRICTED})))
    for name, switch in search.features.items():
        if switch != "auto":
            features = {k: v for k, v in search.features.items() if k != name}
            options.append((f"search.features.{name}: auto", search.model_copy(update={"features": features})))
    return options


def _other_targets(spec: Spec, profile: Profile) -> list[tuple[str, Spec]]:
    """The spec for the other frameworks on these chips, and without modules that predict further tokens."""
    targets = [each for each in frameworks_for(spec.search.target, profile.vendor) if each != spec.search.target]
    searches = [spec.search.model_copy(update={"target": each, "target_release": None}) for each in targets]
    changed = [(f"search.target: {each.target}", spec.model_copy(update={"search": each})) for each in searches]
    if spec.model.num_nextn_predict_layers:
        model = spec.model.model_copy(update={"num_nextn_predict_layers": 0})
        changed.append(("model.num_nextn_predict_layers: 0", spec.model_copy(update={"model": model})))
    return changed


def _rule_changes(spec: Spec, profile: Profile, context: Context, choice: FeatureChoice) -> list[NearestChange]:
    """Where no candidate is legal: pins that can be lifted, and the nearest batch that divides."""
    cards = spec.cluster.num_npus or sum(b.nodes for b in spec.cluster.blocks or ()) * profile.npus_per_node
    cards -= spec.cluster.spare_npus
    batch = spec.training.global_batch_size.value
    changes = []
    looser = [(change, spec.model_copy(update={"search": search})) for change, search in _looser(spec.search)]
    for change, changed in (*_other_targets(spec, profile), *looser):
        if (seconds := _fits(changed, profile, cards, batch)) is not None:
            changes.append(
                NearestChange(change=change, effect=Message("ranking.fits_about_s_step", step=f"{seconds:.1f}"))
            )
    lifted = pins_to_lift(spec.search, context, profile, choice)
    if not changes and lifted:
        search = spec.search.model_copy(
            update={
                field: {axis: v for axis, v in getattr(spec.search, field).items() if axis not in lifted}
                for field in ("fix", "allow", "forbid")
            }
        )
        if (seconds := _fits(spec, profile, cards, batch, search)) is not None:
            change = Message("ranking.search_without_what_it_says_of", names=" and ".join(lifted))
            changes.append(
                NearestChange(change=change, effect=Message("ranking.fits_about_s_step", step=f"{seconds:.1f}"))
            )
    for value in sorted({-(-batch // unit) * unit for unit in (2, 4, 8, 16, 32, 64, 128, 256)} - {batch}):
        if (seconds := _fits(spec, profile, cards, value)) is not None:
            changes.append(
                NearestChange(
                    change=f"training.global_batch_size: {value}",
                    effect=Message("ranking.fits_about_s_step", step=f"{seconds:.1f}"),
                )
            )
            break
    return changes
