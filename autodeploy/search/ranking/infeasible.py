"""Why a spec has no plan, and the smallest change that gives it one."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autodeploy.costs.sweep.sweep import sweep_tree
from autodeploy.kit.errors import UnsupportedError
from autodeploy.messages import Message
from autodeploy.search.branch_and_bound.search_space import SearchSpace, divisible_first, legal_tree, variant
from autodeploy.search.ranking.nearest_legal import pins_to_lift, why_nothing_is_legal
from autodeploy.space.feature_choice import choice_of
from autodeploy.specs.planset import Infeasible, NearestChange
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.stack.releases import frameworks_for
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile


# What divisibility costs.
MIN_GAIN = 0.03  # relative gain in tokens per second and card below which no warning is given


class NearRates(NamedTuple):
    """Tokens per second and card of the fastest candidate, by a batch and by a number of cards near the spec's."""

    batches: dict[int, float]
    cards: dict[int, float]


def near_rates(spec: Spec, profile: Profile, context: Context) -> NearRates:
    """Rates that the warnings compare with the spec's own."""
    batches = _near_batches(context.global_batch, context.world)
    may_idle = spec.cluster.blocks is None or spec.cluster.use == "at_most"
    cards = _near_cards(context.num_npus, profile.npus_per_node) if may_idle else []
    return NearRates(
        {batch: best_rate(spec, profile, context.num_npus, batch) for batch in batches},
        {count: best_rate(spec, profile, count, context.global_batch) for count in cards},
    )


def divisibility_warnings(context: Context, near: NearRates, after_recompute_s: Floats) -> list[str]:
    """Warnings that name the batch and the card count that recover what divisibility loses.

    after_recompute_s : step times of the swept candidates, of which the fastest sets the rate without a change [n].
    """
    rate = _rate(after_recompute_s, context)
    if rate <= 0.0:
        return []
    batches = [
        (others / rate - 1.0, Message("ranking.other_batch", batch=batch, now=context.global_batch))
        for batch, others in near.batches.items()
    ]
    cards = [
        (
            others * count / (rate * context.num_npus) - 1.0,
            Message("ranking.cards_instead_of", cards=count, now=context.num_npus),
        )
        for count, others in near.cards.items()
    ]
    best = [max(options, default=(0.0, "")) for options in (batches, cards)]
    others = [text for gain, text in best if gain > MIN_GAIN]
    if not others:
        return []
    gain = max(gain for gain, _ in best)
    return [f"the batch divides badly among the cards: {' or '.join(others)} would train up to {gain:.0%} faster"]


def _rate(step_s: Floats, context: Context) -> float:
    """Tokens per second and card of the fastest candidate."""
    if not len(step_s) or not np.isfinite(step_s).any():
        return 0.0
    return context.global_batch * context.sample_tokens / float(np.min(step_s)) / context.num_npus


def best_rate(spec: Spec, profile: Profile, num_npus: int, batch: int) -> float:
    """The rate of the fastest swept candidate of another batch or card count."""
    choice = choice_of(spec, profile)
    near = variant(spec, profile, choice, num_npus, batch)
    legal, _ = legal_tree(spec.search, near, profile, choice)
    return _rate(sweep_tree(legal, near, parts=False).after_recompute_s, near)


def _near_batches(batch: int, world: int) -> list[int]:
    """Round batches within 5 %: multiples of large powers of two and of the ranks' own factors."""
    batches = set()
    for unit in (world, *(2**k for k in range(5, 11))):
        for value in (batch // unit * unit, -(-batch // unit) * unit):
            if value > 0 and value != batch and abs(value - batch) <= 0.05 * batch:
                batches.add(value)
    return sorted(batches, key=lambda v: (-(v & -v), abs(v - batch)))[:2]


def _near_cards(cards: int, per_node: int) -> list[int]:
    """Fewer cards with more divisors: of two nodes at least two thirds of them, beyond them 90 % in whole nodes."""
    unit = 1 if cards <= 2 * per_node else per_node
    count, share = cards // unit, 2 / 3 if unit == 1 else 0.9
    near = divisible_first([count, *range(max(1, ceil(count * share)), count)])
    return [n * unit for n in near[:1] if n * unit < cards]


# A batch within the spec's tolerance that divides better.
MAX_BATCHES = 4
MIN_SPEEDUP = 1.002  # a batch of another size has to bring more than noise


def best_batch(spec: Spec, profile: Profile, context: Context) -> int:
    """The batch within the tolerance whose fastest strategy trains most tokens a second, as the sweep estimates it.

    The spec's own batch stays where no other brings anything.
    """
    size = spec.training.global_batch_size
    own = best_rate(spec, profile, context.num_npus, size.value)
    rates = {
        batch: best_rate(spec, profile, context.num_npus, batch)
        for batch in round_batches(size.value, context.world, size.tolerance_pct / 100.0)
    }
    best = max(rates, key=lambda batch: (rates[batch], -abs(batch - size.value)), default=size.value)
    return best if rates.get(best, 0.0) > MIN_SPEEDUP * own else size.value


def round_batches(batch: int, world: int, tolerance: float) -> list[int]:
    """The roundest batches within a relative tolerance: multiples of the ranks and of large powers of two."""
    batches = set()
    for unit in (world, *(2**k for k in range(1, 14))):
        for value in (batch // unit * unit, -(-batch // unit) * unit):
            if value > 0 and value != batch and abs(value - batch) <= tolerance * batch:
                batches.add(value)
    return sorted(batches, key=lambda v: (-(v & -v), abs(v - batch)))[:MAX_BATCHES]


GROWTH = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)


def why_infeasible(spec: Spec, profile: Profile, context: Context, searched: SearchSpace) -> Infeasible:
    """Binding rules, and changes of the spec that the sweep says would fit, the smallest first."""
    legal = searched.counts.enumerated - sum(searched.counts.rejected.values())
    if legal == 0:
        choice = choice_of(spec, profile)
        return Infeasible(
            binding_rules=why_nothing_is_legal(spec.search, context, profile, choice),
            nearest=tuple(_rule_changes(spec, profile, context, choice)),
        )
    rule = missing_memory(spec, profile, context)
    return Infeasible(binding_rules=(rule,), nearest=tuple(_memory_changes(spec, profile, context)))


def missing_memory(spec: Spec, profile: Profile, context: Context) -> str:
    """Memory that the leanest strategy needs, and that of a card."""
    least = _least_gib(spec, profile, context)
    return Message("ranking.leanest_exceeds_memory", needed=least, limit=context.limit_bytes / GIB)


def _fits(spec: Spec, profile: Profile, num_npus: int, batch: int, search: SearchSpec | None = None) -> float | None:
    """Step time of the fastest candidate that fits on so many cards, or None."""
    changed = spec if search is None else spec.model_copy(update={"search": search})
    try:
        choice = choice_of(changed, profile)
        near = variant(changed, profile, choice, num_npus, batch)
    except UnsupportedError:  # a feature that is asked for, or a training beside what it has
        return None
    legal, _ = legal_tree(changed.search, near, profile, choice)
    if not len(legal):
        return None
    return sweep_tree(legal, near, parts=False).fastest_s


def _least_gib(spec: Spec, profile: Profile, context: Context) -> float:
    choice = choice_of(spec, profile)
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
    """Changes where no candidate is legal: pins that can be lifted, and the nearest batch that divides."""
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
            change = Message("ranking.drop_restrictions", names=" and ".join(lifted))
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
