"""Public scripts of the frameworks for a model on a chip, and their measured speed; see the YAML."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from autodeploy.specs.base import Document
from autodeploy.specs.presets import load_preset
from autodeploy.specs.software import run_of
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import Precision
from autodeploy.stack.frameworks import UNRESTRICTED
from autodeploy.stack.software import resolved, stack_of_run
from hardware_profiles import load_profile
from hardware_profiles.magnitudes import TokensPerSecond
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from autodeploy.specs.model import ModelSpec
    from hardware_profiles import Profile

# What a recipe is for: it holds for every model of these sizes, whatever its name and vocabulary.
SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("kv_lora_rank", "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"),
)
SAME_PARAMETERS = 0.02


class MeasuredSpeed(Document):
    """A published speed of a recipe: tokens a second and card, and the record that states it."""

    record: str
    tokens_per_s_per_npu: TokensPerSecond


class PublicRecipe(Document):
    """One public way to launch a model: facts of a script or a published run.

    model : name of a preset. source : owner/name@commit:path of a script, or a document. routing_imbalance : 1.0 where
    the run dealt tokens evenly; absent: as specs have it by default. note : what the script says otherwise than the
    model's publisher.
    """

    model: str
    profile: str
    device: str
    framework: str
    source: str
    num_npus: Annotated[int, Field(ge=1)]
    global_batch_size: Annotated[int, Field(ge=1)]
    seq_length: Annotated[int, Field(ge=1)]
    precision: Precision = "bf16"
    routing_imbalance: float | None = None
    strategy: Strategy
    measured: MeasuredSpeed | None = None
    note: str = ""

    @property
    def measured_step_time_s(self) -> float | None:
        """Seconds of a step, from the published tokens a second."""
        if self.measured is None:
            return None
        tokens = self.global_batch_size * self.seq_length
        return tokens / (self.measured.tokens_per_s_per_npu * self.num_npus)

    @property
    def short_source(self) -> str:
        """The source with eight digits of its commit."""
        place, at, rest = self.source.partition("@")
        commit, colon, path = rest.partition(":")
        return f"{place}@{commit[:8]}:{path}" if at and colon else self.source


@cache
def public_recipes() -> tuple[PublicRecipe, ...]:
    """All of them, in file order."""
    document = shipped("autodeploy.search.ranking", "public_recipes.yaml")
    return tuple(map(PublicRecipe.model_validate, document["recipes"]))


def recipes_for(model: ModelSpec, profile: Profile) -> tuple[PublicRecipe, ...]:
    """The recipes of a model on chips of the profile's family, in file order."""
    return tuple(each for each in public_recipes() if _family(each.profile) == profile.family and is_of(each, model))


def is_of(recipe: PublicRecipe, model: ModelSpec) -> bool:
    """Whether a model has the sizes of the recipe's."""
    preset = load_preset(recipe.model)
    if any(getattr(preset, name) != getattr(model, name) for name in SIZES):
        return False
    return abs(model.total_params() / preset.total_params() - 1.0) <= SAME_PARAMETERS


def features_of(recipe: PublicRecipe) -> frozenset[str]:
    """Features that a recipe ran with: those that it names, and what its stack has on without being named.

    Publishers that launched with software of their own have none on but what they name.
    """
    named, profile = frozenset(recipe.strategy.features), load_profile(recipe.profile, calibrated=False)
    if recipe.framework == UNRESTRICTED:
        return named
    run = run_of(load_preset(recipe.model), recipe.precision, recipe.strategy, named)
    stack = stack_of_run(recipe.framework, recipe.source, profile.vendor, profile.generation, run)
    return named | resolved(stack, run).features


@cache
def _family(profile: str) -> str:
    return load_profile(profile, calibrated=False).family
