"""What parts of a spec say of reinforcement learning, held against each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.errors import FieldError
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
        message = f"{target} trains by reinforcement, the spec is of {spec.training.kind}"
        yield FieldError("/search/target", message, f"one of {', '.join(others)}")
    hint = "leave it out, or training.kind: rl_post_training"
    for field in AXES_OF:
        for axis in getattr(spec.search, field):
            if axis.startswith("rl."):
                yield FieldError(f"/search/{field}/{axis}", f"{spec.training.kind} generates nothing", hint)
    if spec.strategy is not None and spec.strategy.rl is not None:
        yield FieldError("/strategy/rl", f"{spec.training.kind} generates nothing", hint)


def _of_reinforcement(spec: Spec) -> Iterator[FieldError]:
    search, strategy, cards = spec.search, spec.strategy, spec.cluster.num_npus
    if search.target != UNRESTRICTED and not FRAMEWORKS[search.target].post_trains:
        message = f"{search.target} doesn't train by reinforcement"
        yield FieldError("/search/target", message, f"one of {', '.join((*post_trainers(), UNRESTRICTED))}")
    for path, found in (("/run", spec.run), ("/training/tokens", spec.training.tokens)):
        if found is not None:
            yield FieldError(path, "of rl_post_training one step is planned, no run of weeks", "leave it out")
    yield from _pinned(search, cards)
    if strategy is not None and strategy.rl is None:
        message = "the strategy doesn't say where and how it generates"
        yield FieldError("/strategy/rl", message, "strategy: {rl: {placement: colocated, generation: {tp: 4, ...}}}")
    elif strategy is not None and strategy.rl is not None:
        yield from _cards_remain(strategy.rl, cards)


def _pinned(search: SearchSpec, cards: int | None) -> Iterator[FieldError]:
    """Axes that are pinned to what cannot go together."""
    fixed: dict[str, Any] = {str(axis): value for axis, value in search.fix.items()}
    placement, generating = fixed.get("rl.placement"), fixed.get("rl.generation_npus")
    if fixed.get("rl.staleness") and placement not in (None, "async"):
        message = f"{placement}, generation waits for the update: staleness is 0"
        yield FieldError("/search/fix/rl.staleness", message, "leave it out, or rl.placement: async")
    if generating is not None and placement == "colocated":
        message = "colocated, all cards generate"
        yield FieldError("/search/fix/rl.generation_npus", message, "leave it out, or rl.placement: separate or async")
    if generating is not None and cards is not None and generating >= cards:
        yield _none_trains("/search/fix/rl.generation_npus", generating, cards)
    if fixed.get("rl.offload", "none") != "none" and placement in ("separate", "async"):
        message = f"{placement}, trainers don't make room for generation"
        yield FieldError("/search/fix/rl.offload", message, "leave it out, or rl.placement: colocated")
    trainer = FRAMEWORKS[search.target]
    if not trainer.generates_beside and placement in ("separate", "async"):
        message = f"{trainer.title} trains and generates on the same cards"
        yield FieldError("/search/fix/rl.placement", message, "rl.placement: colocated, or target: verl")


def _cards_remain(strategy: RlStrategy, cards: int | None) -> Iterator[FieldError]:
    generating = strategy.generation_npus
    if generating is not None and cards is not None and generating >= cards:
        yield _none_trains("/strategy/rl/generation_npus", generating, cards)


def _none_trains(path: str, generating: int, cards: int) -> FieldError:
    message = f"{generating} of {cards} cards generate, and none is left to train"
    return FieldError(path, message, "fewer cards than the cluster has, or placement: colocated")
