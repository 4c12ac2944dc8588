"""What parts of a spec say of reinforcement learning, held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import FieldError
from autodeploy.messages import Message
from autodeploy.stack.frameworks import FRAMEWORKS, UNRESTRICTED, post_trainers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.rl import RlStrategy
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec

AXES_OF = ("fix", "allow", "forbid")


def rl_faults(spec: Spec) -> list[FieldError]:
    """What contradicts the kind of training, or another part of the spec."""
    return list(_of_reinforcement(spec) if spec.training.rl is not None else _of_pre_training(spec))


def _of_pre_training(spec: Spec) -> Iterator[FieldError]:
    target = spec.search.target
    if FRAMEWORKS[target].post_trains:
        others = [name for name, each in FRAMEWORKS.items() if not each.post_trains]
        message = Message("common.it_needs_field", name="training.kind: rl_post_training")
        yield FieldError("/search/target", message, Message("common.one_of", names=", ".join(others)))
    hint = Message("common.leave_it_out_or", instead="training.kind: rl_post_training")
    for field in AXES_OF:
        for axis in getattr(spec.search, field):
            if axis.startswith("rl."):
                yield FieldError(
                    f"/search/{field}/{axis}",
                    Message("common.it_needs_field", name="training.kind: rl_post_training"),
                    hint,
                )
    if spec.strategy is not None and spec.strategy.rl is not None:
        yield FieldError("/strategy/rl", Message("common.it_needs_field", name="training.kind: rl_post_training"), hint)


def _of_reinforcement(spec: Spec) -> Iterator[FieldError]:
    search, strategy, cards = spec.search, spec.strategy, spec.cluster.num_npus
    if search.target != UNRESTRICTED and not FRAMEWORKS[search.target].post_trains:
        message = Message("specs.does_not_train_by_reinforcement", target=search.target)
        yield FieldError(
            "/search/target", message, Message("common.one_of", names=", ".join((*post_trainers(), UNRESTRICTED)))
        )
    for path, given in (("/run", spec.run), ("/training/tokens", spec.training.tokens)):
        if given is not None:
            yield FieldError(
                path,
                Message("common.excludes_it", what="training.kind: rl_post_training"),
                Message("common.leave_it_out"),
            )
    yield from _pinned(search, cards)
    if strategy is not None and strategy.rl is None:
        message = Message("common.is_required", name="strategy.rl")
        yield FieldError("/strategy/rl", message, "strategy: {rl: {placement: colocated, generation: {tp: 4, ...}}}")
    elif strategy is not None and strategy.rl is not None:
        yield from _cards_remain(strategy.rl, cards)


def _pinned(search: SearchSpec, cards: int | None) -> Iterator[FieldError]:
    """Axes that are pinned to what cannot go together."""
    fixed: dict[str, Any] = {str(axis): value for axis, value in search.fix.items()}
    placement, generating = fixed.get("rl.placement"), fixed.get("rl.generation_npus")
    if fixed.get("rl.staleness") and placement not in (None, "async"):
        message = Message("common.it_needs_field", name="rl.placement: async")
        yield FieldError(
            "/search/fix/rl.staleness", message, Message("common.leave_it_out_or", instead="rl.placement: async")
        )
    if generating is not None and placement == "colocated":
        message = Message("common.excludes_it", what="rl.placement: colocated")
        yield FieldError(
            "/search/fix/rl.generation_npus",
            message,
            Message("common.leave_it_out_or", instead="rl.placement: separate, async"),
        )
    if generating is not None and cards is not None and generating >= cards:
        yield _none_trains("/search/fix/rl.generation_npus", generating, cards)
    if fixed.get("rl.offload", "none") != "none" and placement in ("separate", "async"):
        message = Message("common.it_needs_field", name="rl.placement: colocated")
        yield FieldError(
            "/search/fix/rl.offload",
            message,
            Message("common.leave_it_out_or", instead="rl.placement: colocated, search.target: verl"),
        )
    trainer = FRAMEWORKS[search.target]
    if not trainer.generates_beside and placement in ("separate", "async"):
        message = Message("specs.trains_and_generates_on_same_cards", title=trainer.title)
        yield FieldError("/search/fix/rl.placement", message, "rl.placement: colocated, search.target: verl")


def _cards_remain(strategy: RlStrategy, cards: int | None) -> Iterator[FieldError]:
    generating = strategy.generation_npus
    if generating is not None and cards is not None and generating >= cards:
        yield _none_trains("/strategy/rl/generation_npus", generating, cards)


def _none_trains(path: str, generating: int, cards: int) -> FieldError:
    message = Message("specs.of_cards_generate_and_none_is_left_to", generating=generating, cards=cards)
    return FieldError(path, message, Message("field_fault.less_than", bound=cards))
