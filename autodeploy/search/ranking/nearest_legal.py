"""Why nothing is legal, and the legal strategy that is nearest to one that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autodeploy.messages import Message
from autodeploy.search.branch_and_bound.search_space import candidate_grid
from autodeploy.search.ranking.one_strategy import place
from autodeploy.space.candidates import AXES
from autodeploy.space.rules import WORDS, load_rules, scope_of, values_of
from autodeploy.space.space import KNOBS, decode
from autodeploy.specs.planset import NearestChange

if TYPE_CHECKING:
    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.cp_sat.legality_model import LegalityModel, Nearest, Reason
    from autodeploy.search.ranking.plans import Identity
    from autodeploy.space.candidates import Candidates
    from autodeploy.space.feature_choice import FeatureChoice
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile


def why_nothing_is_legal(
    search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice
) -> tuple[str, ...]:
    """A minimal set of pins and rules that leaves no strategy; empty where one is legal."""
    return tuple(_text(reason) for reason in conflict(search, context, profile, choice))


def conflict(search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice) -> tuple[Reason, ...]:
    """The same as reasons."""
    return _model(search, context, profile, choice).conflict()


def rules_in_the_way(
    search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice
) -> tuple[tuple[str, str], ...]:
    """Of `conflict` the rules alone, name and text, where nothing is to be said of pins: read from the few candidates
    that pins leave. Of rules that do as well, those of the fewest axes stay, then the first. Empty where pins alone
    leave nothing, or a candidate is legal.
    """
    candidates = candidate_grid(search, context, profile, choice).whole().candidates()
    values, scope = values_of(candidates, context.facts), scope_of(context.facts, search.target)
    binding = [rule for rule in load_rules() if rule.binds(scope)]
    broken = np.array([~np.broadcast_to(rule.mask(values), (len(candidates),)) for rule in binding])
    times, left = np.count_nonzero(broken, axis=0), np.ones(len(binding), dtype=bool)
    if not times.all():
        return ()
    for number in sorted(range(len(binding)), key=lambda n: (-len(binding[n].names().intersection(AXES)), -n)):
        left[number] = bool((times[broken[number]] == 1).any())
        times -= broken[number] & ~left[number]
    known = {**WORDS.places(), **context.facts}
    return tuple((rule.name, rule.said(known)) for rule, stays in zip(binding, left, strict=True) if stays)


def pins_to_lift(search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice) -> tuple[str, ...]:
    """The fewest axes to unpin so that some strategy is legal."""
    return tuple(reason.name for reason in _model(search, context, profile, choice).liftable())


def _model(
    search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice, also: Candidates | None = None
) -> LegalityModel:
    from autodeploy.search.cp_sat.legality_model import LegalityModel  # loads ortools

    return LegalityModel(search, context, choice.switches, ranks_per_node=profile.ranks_per_node, also=also)


def _text(reason: Reason) -> str:
    return reason.text if reason.is_pin else Message("common.place", place=reason.name, message=reason.text)


def nearest_legal(
    candidate: Candidates, strategy: Strategy, context: Context, spec: Spec, profile: Profile, choice: FeatureChoice
) -> Nearest | None:
    """The legal strategy with the fewest axes changed; what the strategy leaves open may be anything."""
    return _model(spec.search, context, profile, choice, also=candidate).nearest(candidate, ignore=_open(strategy))


def nearest_changes(
    candidate: Candidates,
    strategy: Strategy,
    context: Context,
    spec: Spec,
    profile: Profile,
    choice: FeatureChoice,
    identity: Identity,
) -> tuple[NearestChange, ...]:
    """The nearest legal strategy as a change of this one, with what a step of it takes."""
    near = nearest_legal(candidate, strategy, context, spec, profile, choice)
    if near is None:
        return ()
    plan = place(near.candidate, context, spec, identity)
    effect = (
        Message("ranking.legal_too_large")
        if plan is None
        else Message("ranking.fits_about_s_step", step=f"{plan.step_time_s:.4g}")
    )
    return (NearestChange(change=change_text(candidate, near), effect=effect),)


def change_text(before: Candidates, near: Nearest) -> str:
    """`tp: 3 -> 4, ep: 48 -> 32`."""
    parts = []
    for knob in KNOBS:
        if knob.name not in near.changed:
            continue
        old, new = _shown(before, knob.name, knob.columns), _shown(near.candidate, knob.name, knob.columns)
        parts.append(f"{knob.name}: {old} -> {new}")
    return ", ".join(parts)


def _shown(candidate: Candidates, name: str, columns: tuple[str, ...]) -> str:
    values = [getattr(candidate, column)[0] for column in columns]
    if isinstance(values[0], np.bool_):
        return next((column for column, on in zip(columns, values, strict=True) if on), "none")
    text = str(decode(name, int(values[0])))
    return f"{text} {int(values[1])}" if text == "hybrid" else text


def _open(strategy: Strategy) -> frozenset[str]:
    """Knobs that a strategy says nothing of: they follow from its others."""
    open_ = {knob for knob in ("etp", "cp_algo", "moe_dispatcher") if getattr(strategy, knob) is None}
    return frozenset(open_)
