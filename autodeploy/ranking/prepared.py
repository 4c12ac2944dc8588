"""What a search is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.ranking.plans import Identity
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.feature_choice import FeatureChoice
    from hardware_profiles.profile import Profile


@dataclass(frozen=True, slots=True)
class Prepared:
    """A spec resolved: profile, features and the context of the nominal cluster and batch."""

    spec: Spec
    profile: Profile
    choice: FeatureChoice
    context: Context
    identity: Identity
