"""What stands beside the plans for comparison: a public recipe, else the user's own script, else a plain start."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, Final

from autodeploy.calibration.release_defaults import unnamed_features
from autodeploy.messages import Message
from autodeploy.ranking.moved_strategy import Moved, moved
from autodeploy.ranking.plain_start import plain_start
from autodeploy.ranking.public_recipes import PublicRecipe, recipes_for
from autodeploy.stack.frameworks import UNRESTRICTED, title_of

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.ranking.plans import Identity
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

PUBLIC_RECIPE: Final = "public recipe"
YOUR_SCRIPT: Final = "your script"
PLAIN: Final = "1F1B"
# Recipes of one model that are moved until one starts.
MOST_RECIPES = 2
# A recipe is for its sequence length and for others up to so many doublings away.
LENGTH_DOUBLINGS = 1.0


def reference_plan(spec: Spec, profile: Profile, context: Context, identity: Identity) -> Plan | None:
    """The plan that a better one has to be better than, with its label and in `explanation` where it is from.

    The framework's public recipe for the model on chips of the family, moved to the spec's cards and batch; else the
    spec's own strategy; else 1F1B at the smallest TP x PP that fits. It obeys the launch target, not what the spec
    fixes or asks of its plans. None where nothing of it fits.
    """
    for recipe in _nearest(recipes_for(spec.model, profile), spec, context)[:MOST_RECIPES]:
        features = frozenset(recipe.strategy.features) | unnamed_features(spec.cluster.profile)
        start = moved(recipe.strategy, features, context, spec, profile, identity)
        if start is not None:
            return _labelled(start, PUBLIC_RECIPE, _of_recipe(recipe))
    if spec.strategy is not None:
        named = frozenset(spec.strategy.features)
        features = named | unnamed_features(spec.cluster.profile) if named else context.features
        start = moved(spec.strategy, features, context, spec, profile, identity)
        if start is not None:
            return _labelled(start, YOUR_SCRIPT, Message("ranking.strategy_that_spec_brought"))
    plan = plain_start(spec, profile, context, identity)
    if plan is None:
        return None
    text = Message("ranking.n_1f1b_with_every_layer_recomputed_at_smallest_tp")
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
        "ranking.recipe_of_for_cards_batch_of_and_tokens",
        maker=maker,
        cards=recipe.num_npus,
        batch=recipe.global_batch_size,
        length=recipe.seq_length,
        source=recipe.short_source,
    )


def _labelled(start: Moved, label: str, source: str) -> Plan:
    text = Message("ranking.changed_here", source=source, changes=", ".join(start.changes)) if start.changes else source
    return start.plan.model_copy(update={"label": label, "explanation": text})
