"""What is said of a search over placements: whether asynchrony pays, what more of it would bring, why nothing fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.rl_planning.launchable import rule_texts
from autodeploy.specs.planset import Infeasible, NearestChange
from autodeploy.stack.frameworks import title_of

if TYPE_CHECKING:
    from autodeploy.rl_planning.search import Found
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

USUAL_GAP = 0.15
MOST_REASONS = 5


def search_notes(spec: Spec, found: Found, plans: tuple[Plan, ...], gap: float | None) -> tuple[str, ...]:
    """Notes beside the plans."""
    notes = []
    best = found.best_of
    together = min((s for name, s in best.items() if name != "async"), default=None)
    beside = best.get("async")
    if together is not None and beside is not None:
        longer = 100.0 * (beside / together - 1.0)
        if beside >= together:
            notes.append(
                f"asynchrony does not pay here: its best plan takes {beside:.4g} s, {longer:.0f}% longer than the best "
                "synchronous one"
            )
        else:
            notes.append(
                f"asynchronous plans train on responses of an older policy: without them a step takes {together:.4g} s "
                f"instead of {beside:.4g} s"
            )
    if spec.strategy is not None:
        notes.append("the plans do not follow the spec's `strategy`: `estimate` predicts it")
    if gap is not None and gap > USUAL_GAP:
        notes.append(
            f"plans that are up to {100.0 * gap:.1f}% faster are not ruled out: the bound takes the best of generation "
            "and of training on any split"
        )
    return tuple(notes)


def infeasible(spec: Spec, found: Found, update: Infeasible | None = None) -> Infeasible:
    """The rules that bind, the commonest first, and the changes that their refusals name.

    update : why the search of the update alone leaves nothing, where it does.
    """
    texts = rule_texts(spec.search.target)
    binding = sorted(found.refused, key=lambda rule: (-found.refused[rule], rule))
    rules = [] if update is None else list(update.binding_rules)
    rules += [f"{rule}: {found.refused[rule]} layouts" for rule in binding[:MOST_REASONS]]
    title = title_of(spec.search.target)
    rules += [f"{title} can't launch this plan: {texts[rule]}" for rule in binding[:MOST_REASONS] if rule in texts]
    changes = {
        error.errors[0].hint: error.errors[0].message for error in reversed(found.errors) if error.errors[0].hint
    }
    rules += [error.errors[0].message for error in found.errors[-1:]] if not rules else []
    nearest = [] if update is None else list(update.nearest)
    nearest += [NearestChange(change=change, effect=message) for change, message in changes.items()]
    return Infeasible(
        binding_rules=tuple(rules or ["no layout divides the cards"]), nearest=tuple(nearest[:MOST_REASONS])
    )
