"""Common slips in a spec that is valid: a batch in tokens, part of a node, dies counted as cards.

What is surely wrong is refused; what only looks wrong is told before the search begins, and again with every plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from autodeploy.kit.errors import FieldError
from autodeploy.messages import Message
from hardware_profiles import ProfileError, load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.spec import Spec
    from hardware_profiles import Profile

MANY_TOKENS: Final = 500e6
"""Of a step: published trainings have up to about 100 million."""


@dataclass(frozen=True, slots=True)
class Slip:
    """What looks wrong at a place of the spec."""

    path: str
    message: str


def refuse_impossible(spec: Spec) -> list[FieldError]:
    """What nobody can have meant: a step that trains more than the run."""
    of_phases = sum(phase.tokens for phase in spec.run.phases) if spec.run is not None else 0.0
    total, step = spec.training.tokens or of_phases, _step_tokens(spec)
    if not total or step <= total or spec.training.global_batch_size.value < spec.training.seq_length:
        return []
    message = Message("importers.one_step_would_train_tokens_more_than_whole", tokens=step, total=total)
    return [FieldError("/training/global_batch_size", message, Message("importers.it_counts_sequences_not_tokens"))]


def slips(spec: Spec) -> tuple[Slip, ...]:
    """What looks wrong in a valid spec."""
    try:
        profile = load_profile(spec.cluster.profile, overrides=spec.cluster.overrides)
    except ProfileError:  # told elsewhere
        return tuple(_batch_in_tokens(spec))
    return (*_batch_in_tokens(spec), *_part_of_a_node(spec, profile), *_dies_as_cards(spec, profile))


def _step_tokens(spec: Spec) -> float:
    return float(spec.training.global_batch_size.value) * spec.training.seq_length


def _batch_in_tokens(spec: Spec) -> Iterator[Slip]:
    batch, seq = spec.training.global_batch_size.value, spec.training.seq_length
    if _step_tokens(spec) >= MANY_TOKENS and batch >= seq:
        yield Slip(
            "/training/global_batch_size",
            Message(
                "importers.global_batch_of_sequences_is_tokens_step_where",
                batch=batch,
                tokens=_step_tokens(spec),
                sequences=max(1, round(batch / seq)),
            ),
        )


def _part_of_a_node(spec: Spec, profile: Profile) -> Iterator[Slip]:
    cards, per_node = spec.cluster.num_npus, profile.npus_per_node
    if cards is None or cards <= per_node or cards % per_node == 0 or spec.cluster.use == "at_most":
        return
    lower = cards // per_node * per_node
    yield Slip(
        "/cluster/num_npus",
        Message(
            "importers.cards_are_no_whole_nodes_of_whole_nodes",
            cards=cards,
            node=per_node,
            lower=lower,
            upper=lower + per_node,
        ),
    )


def _dies_as_cards(spec: Spec, profile: Profile) -> Iterator[Slip]:
    cards, dies = spec.cluster.num_npus, profile.devices_per_npu
    if cards is None or dies == 1 or cards % dies:
        return
    strategy = spec.strategy
    ranks = 0 if strategy is None else strategy.tp * strategy.pp * strategy.cp * (strategy.dp or 0)
    whole = None if profile.supernode_nodes is None else profile.supernode_nodes * profile.npus_per_node
    if ranks == cards:
        yield Slip(
            "/cluster/num_npus",
            Message(
                "importers.strategy_has_ranks_but_cards_have_dies_each",
                ranks=ranks,
                cards=cards,
                dies=dies,
                fewer=cards // dies,
            ),
        )
    elif whole is not None and cards == dies * whole:
        yield Slip(
            "/cluster/num_npus",
            Message(
                "importers.cards_are_supernodes_where_dies_of_one_were",
                cards=cards,
                count=dies,
                dies=cards,
                fewer=whole,
            ),
        )
