"""One strategy of post-training, predicted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Unpack

from autodeploy.costs.inputs.build_context import healthy_npus
from autodeploy.costs.post_training.generation import Case, generation_part
from autodeploy.costs.post_training.samples import InfeasibleRlError
from autodeploy.costs.post_training.step import Note, combined
from autodeploy.costs.post_training.update import update_part
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.training import ROUTER_FIELDS
from autodeploy.stack.features import FEATURES
from cost_models.schedule import schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.costs.post_training.overheads import Overheads
    from autodeploy.costs.post_training.samples import Trained
    from autodeploy.costs.post_training.step import RlStep
    from autodeploy.costs.post_training.update import UpdatePart
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.rl import RlStrategy, RlTraining
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile


# Parts of an update that were predicted.
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
    **trained: Unpack[Trained],
) -> UpdatePart:
    """`update_part`, predicted once for equal documents.

    Raises SpecError as of `update_part`.
    """
    documents = tuple(each.model_dump_json() for each in (model, cluster, rl, strategy))
    registered = (*FEATURES.values(), *schedules())
    on = None if features is None else frozenset(features)
    software, routed = trained.get("software"), trained.get("routed")
    said = None if software is None else software.model_dump_json()
    router = None if routed is None else routed.model_dump_json(include=set(ROUTER_FIELDS))
    key = (*documents, profile.content_hash, npus, pack_tokens, on, said, router, tuple(map(id, registered)))
    predict = partial(update_part, model, profile, cluster, rl, strategy, npus=npus, pack_tokens=pack_tokens)
    return _predicted(_Asked(key, partial(predict, features=on, **trained), registered))


@dataclass(frozen=True)
class _Asked:
    """A question; equal by its key. registered : kept alive, so that their ids stay theirs."""

    key: tuple[object, ...]
    predict: Callable[[], UpdatePart] = field(compare=False)
    registered: tuple[object, ...] = field(compare=False)


@lru_cache(maxsize=MOST_KEPT)
def _predicted(asked: _Asked) -> UpdatePart:
    return asked.predict()


MOST_SPLITS = 16


def rl_step(
    model: ModelSpec,
    profile: Profile,
    cluster: ClusterSpec,
    rl: RlTraining,
    strategy: Strategy,
    layout: RlStrategy,
    *,
    features: frozenset[str] | None = None,
    overheads: Overheads | None = None,
    beyond_memory: bool = False,
    **trained: Unpack[Trained],
) -> RlStep:
    """A step under one strategy of the update and one of generation; without a split the best one, which is said.

    overheads : of the framework; None: what is usual. beyond_memory : as of `combined`.

    Raises InfeasibleRlError if a phase does not fit into memory, or no card is left for one of both; SpecError if the
    strategy contradicts the cards.
    """
    cards = healthy_npus(profile, cluster)

    def on(training: int, generating: int) -> RlStep:
        update = kept_update(
            *(model, profile, cluster, rl, strategy, training, layout.pack_tokens), features, **trained
        )
        left = update.left_bytes(layout.offload) if layout.placement == "colocated" else 0.0
        case = Case(generating, left, layout.staleness, layout.partial_rollout)
        generation = generation_part(model, profile, cluster, rl, layout.generation, case, overheads=overheads)
        return combined(
            *(update, generation, rl, layout),
            profile=profile,
            cluster=cluster,
            overheads=overheads,
            beyond_memory=beyond_memory,
        )

    if layout.placement == "colocated":
        return on(cards, cards)
    if layout.generation_npus is not None:
        if layout.generation_npus >= cards:
            raise InfeasibleRlError(
                Message("specs.no_trainer_cards", generating=layout.generation_npus, cards=cards),
                rule="split",
                path="/strategy/rl/generation_npus",
                hint=Message("field_fault.less_than", bound=cards),
            )
        generating = layout.generation_npus
        return on(cards - generating, generating)
    return _best_split(cards, profile, on)


def _best_split(cards: int, profile: Profile, on: Callable[[int, int], RlStep]) -> RlStep:
    """The fastest step of those on so many cards that train and so many that generate, said to be that."""
    found: list[RlStep] = []
    refusals: list[SpecError] = []
    for generating in splits(cards, profile):
        try:
            found.append(on(cards - generating, generating))
        except SpecError as error:
            refusals.append(error)
    if not found and refusals:
        raise refusals[0]
    if not found:
        raise InfeasibleRlError(
            Message("post_training.card_cannot_be_split", cards=cards),
            rule="split",
            path="/cluster/num_npus",
            hint=Message("post_training.two_cards_or_colocated"),
        )
    best = min(found, key=lambda step: step.step_time_s)
    said = Note("best_split", Message("post_training.best_split", generating=best.generation_npus, cards=cards))
    return replace(best, notes=(*best.notes, said))


def splits(cards: int, profile: Profile) -> tuple[int, ...]:
    """Cards that may generate: whole nodes, where there are several, at most MOST_SPLITS even steps of them."""
    unit = profile.npus_per_node if cards > profile.npus_per_node else 1
    count = -(-cards // unit)
    step = -(-count // MOST_SPLITS)
    return tuple(unit * part for part in range(step, count, step))
