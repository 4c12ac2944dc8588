"""What is said of a search over placements: whether asynchrony pays, what more of it would bring, why nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from autodeploy.messages import Message
from autodeploy.post_training import InfeasibleRlError
from autodeploy.rl_planning.launchable import rule_texts
from autodeploy.specs.planset import Infeasible, NearestChange
from autodeploy.stack.frameworks import title_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.errors import SpecError
    from autodeploy.rl_planning.search import Found
    from autodeploy.specs.spec import Spec

USUAL_GAP = 0.15
MOST_REASONS = 5
RULES: Final = {
    "generation_cards": "degrees of generation divide its cards",
    "generation_kv": "the longest response fits beside the engine's weights",
    "generation_weights": "the engine's weights fit on its ranks",
    "hand_over_memory": "trained and generating weights fit on a die at once",
    "memory_limit_gib": "every phase stays within search.memory_limit_gib",
    "pack_tokens": "a pack holds the longest sample",
    "split": "some cards generate, and some train",
    "update": "a layout of the update is legal and fits",
    "update_cards": "degrees of the update divide the cards that train",
    "update_memory": "training fits into the memory of a die",
    "whole_nodes": "generation and training share no node",
}
"""What the rules of this search say; those of a target are `rule_texts`."""


def search_notes(spec: Spec, result: Found, gap: float | None) -> tuple[str, ...]:
    """Notes beside the plans."""
    notes = []
    best = result.best_of
    together = min((s for name, s in best.items() if name != "async"), default=None)
    beside = best.get("async")
    if together is not None and beside is not None:
        longer = 100.0 * (beside / together - 1.0)
        if beside >= together:
            notes.append(
                Message("rl_planning.asynchrony_does_not_pay_here_its_best_plan", beside=beside, longer=longer)
            )
        else:
            notes.append(
                Message(
                    "rl_planning.asynchronous_plans_train_on_responses_of_older_policy",
                    together=together,
                    beside=beside,
                )
            )
    if spec.strategy is not None:
        notes.append(Message("ranking.plans_do_not_follow_spec_s_strategy_estimate"))
    if gap is not None and gap > USUAL_GAP:
        notes.append(Message("rl_planning.plans_that_are_up_to_faster_are_not", gap=100.0 * gap))
    return tuple(notes)


def infeasible(spec: Spec, result: Found, update: Infeasible | None = None) -> Infeasible:
    """The rules that bind, the commonest first, and the changes that their refusals name.

    update : why the search of the update alone leaves nothing, where it does.
    """
    texts = rule_texts(spec.search.target)
    binding = sorted(result.refused, key=lambda rule: (-result.refused[rule], rule))
    rules = [] if update is None else list(update.binding_rules)
    rules += [_told(rule, result.refused[rule]) for rule in binding[:MOST_REASONS]]
    title = title_of(spec.search.target)
    rules += [
        Message("common.cannot_launch_this_plan", release=title, reason=texts[rule])
        for rule in binding[:MOST_REASONS]
        if rule in texts
    ]
    changes = {error.errors[0].hint: error.errors[0].message for error in _nearest(result.errors)}
    rules += [error.errors[0].message for error in result.errors[-1:]] if not rules else []
    nearest = [] if update is None else list(update.nearest)
    nearest += [NearestChange(change=change, effect=message) for change, message in changes.items()]
    return Infeasible(
        binding_rules=tuple(rules or [Message("rl_planning.no_layout_divides_cards")]),
        nearest=tuple(nearest[:MOST_REASONS]),
    )


def _told(rule: str, layouts: int) -> str:
    """What a rule says, or how many layouts break it where its words follow."""
    if rule in RULES:
        return Message("common.place", place=rule, message=RULES[rule])
    return Message("rl_planning.layouts", rule=rule, count=layouts)


def _nearest(errors: Sequence[SpecError]) -> list[SpecError]:
    """Refusals that name a change: of those by one rule the one that lacks least, the rest the last first."""
    least: dict[str, InfeasibleRlError] = {}
    for error in errors:
        if isinstance(error, InfeasibleRlError):
            nearer = least.get(error.rule)
            if nearer is None or error.share > nearer.share:
                least[error.rule] = error
    others = [error for error in reversed(errors) if not isinstance(error, InfeasibleRlError)]
    refusals = [*sorted(least.values(), key=lambda error: (-error.share, error.rule)), *others]
    return [error for error in refusals if error.errors[0].hint]
