"""Launch files: a plan is held against the rules of the framework before its exporter writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.formats.registry import target_of
from autodeploy.kit.errors import FieldError, SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.spec import spec_of
from autodeploy.stack.frameworks import FRAMEWORKS, title_of
from autodeploy.stack.releases import frameworks_for
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.search.planner import LaunchRules
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec


def refuse_illegal(plan_set: PlanSet, plan: Plan, to: str, judge: Callable[[Spec], LaunchRules]) -> None:
    """Refuses a plan that a format's framework does not start: on these chips, of this training, or by a rule.

    Parameters
    ----------
    judge : says what the target of a spec has against its strategy.

    Raises
    ------
    UnsupportedError
        with every rule that the plan breaks, and the frameworks on these chips that start it.
    """
    spec, target = spec_of(plan_set.search), target_of(to)
    if target is None or FRAMEWORKS[target].post_trains is not (spec.training.rl is not None):
        return
    faults = _faults(_launched(spec, plan, target), judge)
    if faults:
        vendor = load_profile(spec.cluster.profile).vendor
        others = [each for each in frameworks_for(target, vendor) if not _faults(_launched(spec, plan, each), judge)]
        hint = Message("exporters.export_to", names=", ".join((*others, "json")))
        title = title_of(target)
        raise UnsupportedError(
            errors=tuple(
                FieldError(path, Message("common.cannot_launch_this_plan", release=title, reason=reason), hint)
                for path, reason in faults
            )
        )


def _faults(spec: Spec, judge: Callable[[Spec], LaunchRules]) -> list[tuple[str, str]]:
    """Where and why a launch of the spec's strategy does not start."""
    try:
        return [
            ("/strategy", Message("common.place", place=rule.rule, message=rule.text)) for rule in judge(spec).stopping
        ]
    except SpecError as error:  # no release for the chips, or a feature that it does not have
        return [("/to", each.message) for each in error.errors]


def _launched(spec: Spec, plan: Plan, target: str) -> Spec:
    """The spec with the plan as its strategy, on the plan's cards and batch, for a framework's release."""
    search, training, strategy = spec.search, spec.training, plan.strategy
    if target != search.target:  # features that were asked for are notes of the other launch
        search = search.model_copy(update={"target": target, "target_release": None, "features": {}})
    asked, batch = training.global_batch_size, plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1)
    if training.rl is None and abs(batch - asked.value) <= asked.value * asked.tolerance_pct / 100:
        chosen = asked.model_copy(update={"value": batch})
        training = training.model_copy(update={"global_batch_size": chosen})
    cards = {"num_npus": plan.num_npus_used, "blocks": None, "spare_npus": 0}
    cluster = spec.cluster.model_copy(update=cards)
    changed = {"search": search, "training": training, "cluster": cluster, "strategy": strategy}
    return spec.model_copy(update=changed)
