"""Parts of an update that were predicted: whoever compares ways to generate asks for the same one each time."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from autodeploy.post_training.update import update_part
from autodeploy.stack.features import FEATURES
from cost_models.schedule import schedules

if TYPE_CHECKING:
    from autodeploy.post_training.update import UpdatePart
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.rl import RlTraining
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile

MOST_KEPT = 32  # as many as there are splits of some cards


def kept_update(
    model: ModelSpec,
    profile: Profile,
    cluster: ClusterSpec,
    rl: RlTraining,
    strategy: Strategy,
    npus: int,
    pack_tokens: int | None,
    features: frozenset[str] | None,
) -> UpdatePart:
    """`update_part`, predicted once for equal documents.

    Raises
    ------
    SpecError
        as of `update_part`.
    """
    documents = tuple(each.model_dump_json() for each in (model, cluster, rl, strategy))
    registered = (*FEATURES.values(), *schedules())
    on = None if features is None else frozenset(features)
    key = (*documents, profile.content_hash, npus, pack_tokens, on, tuple(map(id, registered)))
    return _predicted(_Asked(key, model, profile, cluster, rl, strategy, npus, pack_tokens, on, registered))


@dataclass(frozen=True)
class _Asked:
    """What is asked for; equal by its key. registered : kept alive, so that their ids stay theirs."""

    key: tuple[object, ...]
    model: ModelSpec = field(compare=False)
    profile: Profile = field(compare=False)
    cluster: ClusterSpec = field(compare=False)
    rl: RlTraining = field(compare=False)
    strategy: Strategy = field(compare=False)
    npus: int = field(compare=False)
    pack_tokens: int | None = field(compare=False)
    features: frozenset[str] | None = field(compare=False)
    registered: tuple[object, ...] = field(compare=False)


@lru_cache(maxsize=MOST_KEPT)
def _predicted(asked: _Asked) -> UpdatePart:
    return update_part(
        asked.model,
        asked.profile,
        asked.cluster,
        asked.rl,
        asked.strategy,
        npus=asked.npus,
        pack_tokens=asked.pack_tokens,
        features=asked.features,
    )
