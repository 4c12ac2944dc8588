"""Measured beats predicted: a run of the spec's own work that somebody measured, and how far the model misses it.

Of this model on these cards, with this batch and sequence length: a run stored for the cluster, else a public recipe.
Every plan of such a spec is multiplied by measured over predicted, so that none is called better that is predicted to
take longer than what was measured.
"""

from __future__ import annotations

import hashlib
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from autodeploy.costs.inputs.build_context import choice_context, device_of, profile_of, spec_context
from autodeploy.costs.steps.one_strategy import estimated
from autodeploy.kit.errors import AutoDeployError
from autodeploy.messages import Message
from autodeploy.search.ranking.explanation import headroom
from autodeploy.search.ranking.public_recipes import PublicRecipe, features_of, recipes_for
from autodeploy.space.feature_choice import choice_of
from autodeploy.specs.base import Document
from autodeploy.specs.planset import PARTS, Breakdown, Rescaled
from autodeploy.specs.presets import load_preset
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.spec import Spec, canonical_json
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import TrainingSpec
from hardware_profiles.magnitudes import Seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.specs.plan_details import PipelineTimeline
    from autodeploy.specs.planset import Plan
    from hardware_profiles.profile import Profile


# In the report of an overlay: the runs that it was fitted to, each an `OwnRun`.
MEASURED = "measured"
# Fields of training and model that change nothing in a step.
NOT_WORK = frozenset({"tokens", "recipe", "name"})
MAX_RATIOS_KEPT = 256
_RATIOS: dict[tuple[str, ...], Rescaled | None] = {}


def measured_ratio(spec: Spec, profile: Profile, context: Context) -> Rescaled | None:
    """Measured over predicted step time of a run of the same work; None where nobody measured one.

    An overlay that was fitted to the cluster's own runs has moved the predictions: the ratio is of what it leaves, and
    public recipes, which ran elsewhere, say nothing more. The fastest run counts.

    context : the spec's cards and batch.
    """
    work = work_of(spec, context.num_npus, context.global_batch)
    overlay = spec.cluster.overlay if isinstance(spec.cluster.overlay, dict) else None
    runs = None if overlay is None else _runs_of(overlay, work)
    search, recipe = spec.search, spec.model.recipe_or_default.model_dump_json()
    key = (
        work,
        recipe,
        canonical_json(None if runs is None else [run.model_dump(mode="json") for run in runs]),
        profile.content_hash,
        search.target,
        str(search.target_release),
    )
    if key not in _RATIOS:
        if len(_RATIOS) >= MAX_RATIOS_KEPT:
            _RATIOS.clear()
        if runs is None:
            _RATIOS[key] = _of_recipes(spec, profile, context)
        else:
            _RATIOS[key] = _of_runs(runs, spec, profile, context)
    return _RATIOS[key]


def level_of(spec: Spec) -> Rescaled | None:
    """`measured_ratio` of a spec by itself, for answers over many numbers of cards."""
    profile = profile_of(spec.cluster)
    return measured_ratio(spec, profile, choice_context(spec, profile, choice_of(spec, profile)))


def work_of(spec: Spec, num_npus: int, global_batch: int) -> str:
    """Hash of the work of a run: two of one work can be compared by their times alone."""
    model = spec.model.model_dump(mode="json", exclude=set(NOT_WORK))
    training = spec.training.model_dump(mode="json", exclude={*NOT_WORK, "global_batch_size"})
    cluster = spec.cluster.model_dump(mode="json", include={"profile", "device", "slowest_device_factor", "overrides"})
    if spec.cluster.leaf is not None:
        cluster["leaf"] = spec.cluster.leaf.model_dump(mode="json")
    return hashlib.sha256(canonical_json([model, training, cluster, num_npus, global_batch]).encode()).hexdigest()


class OwnRun(Document):
    """A stored run as the report of an overlay carries it; `work`: see `work_of`."""

    run: Annotated[str, Field(max_length=200)]
    work: Annotated[str, Field(max_length=200)]
    strategy: Strategy
    step_time_s: Seconds


def _runs_of(overlay: dict[str, Any], work: str) -> list[OwnRun]:
    """The runs of this work that an overlay was fitted to; what anybody else wrote there is none."""
    report = overlay.get("report")
    rows = report.get(MEASURED) if isinstance(report, dict) else None
    own_runs = []
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("work") == work:
            with suppress(ValidationError):
                own_runs.append(OwnRun.model_validate(row))
    return own_runs


def _of_runs(runs: list[OwnRun], spec: Spec, profile: Profile, context: Context) -> Rescaled | None:
    """The fastest of the cluster's own runs of this work, predicted under the overlay that was fitted to it."""
    if not runs:
        return None
    fastest = min(runs, key=lambda run: run.step_time_s)
    features = frozenset(fastest.strategy.features) or context.features
    predicted_s = _predicted_s(spec, profile, fastest.strategy, features, context)
    return _ratio(fastest.step_time_s, predicted_s, fastest.run, "a run stored for this cluster")


def _of_recipes(spec: Spec, profile: Profile, context: Context) -> Rescaled | None:
    """The fastest public recipe of this work, predicted as it ran: profile as shipped, experts loaded as then."""
    recipes = [each for each in recipes_for(spec.model, profile) if _is_same_work(each, spec, profile, context)]
    measured = [each for each in recipes if each.measured_step_time_s is not None]
    if not measured:
        return None
    recipe = min(measured, key=lambda each: each.measured_step_time_s or math.inf)
    assert recipe.measured is not None
    assert recipe.measured_step_time_s is not None
    as_measured = _as_it_ran(recipe, spec)
    features = features_of(recipe)
    predicted_s = _predicted_s(as_measured, profile_of(as_measured.cluster), recipe.strategy, features, context)
    return _ratio(recipe.measured_step_time_s, predicted_s, recipe.measured.record, recipe.short_source)


def _is_same_work(recipe: PublicRecipe, spec: Spec, profile: Profile, context: Context) -> bool:
    work = (
        spec.cluster.profile,
        device_of(profile, spec.cluster).name,
        context.num_npus,
        context.global_batch,
        spec.training.seq_length,
        spec.training.precision,
        spec.model.num_nextn_predict_layers,
    )
    return work == (
        recipe.profile,
        recipe.device,
        recipe.num_npus,
        recipe.global_batch_size,
        recipe.seq_length,
        recipe.precision,
        load_preset(recipe.model).num_nextn_predict_layers,
    )


def _as_it_ran(recipe: PublicRecipe, spec: Spec) -> Spec:
    """The spec under the recipe's own conditions: no overlay, no overrides, its routing, its framework."""
    training: dict[str, Any] = {
        "seq_length": recipe.seq_length,
        "global_batch_size": recipe.global_batch_size,
        "precision": recipe.precision,
    }
    if recipe.routing_imbalance is not None:
        training |= {"router": "forced"} if recipe.routing_imbalance == 1.0 else {}
        training |= {"routing_imbalance": recipe.routing_imbalance}
    cluster = {"overlay": "none", "overrides": {}, "slowest_device_factor": 1.0}
    return spec.model_copy(
        update={
            "cluster": spec.cluster.model_copy(update=cluster),
            "training": TrainingSpec.model_validate(training),
            "search": SearchSpec(target=recipe.framework),
            "run": None,
        }
    )


def _predicted_s(
    spec: Spec, profile: Profile, strategy: Strategy, features: frozenset[str], context: Context
) -> float | None:
    """Step time as the model has it; None where it can't be predicted here."""
    try:
        measured_context = spec_context(
            spec,
            profile,
            features | {"fsdp"} if strategy.fsdp else features,
            num_npus=context.num_npus,
            global_batch=context.global_batch,
            distributed_optimizer=strategy.distributed_optimizer,
        )
        return estimated(strategy, measured_context).estimate.step_time_s
    except AutoDeployError:
        return None


def _ratio(measured_s: float, predicted_s: float | None, run: str, source: str) -> Rescaled | None:
    if predicted_s is None or predicted_s <= 0.0:
        return None
    return Rescaled(
        ratio=measured_s / predicted_s,
        measured_step_time_s=measured_s,
        predicted_step_time_s=predicted_s,
        run=run,
        source=source,
    )


# A plan with every predicted time multiplied by what a measured run of the same work says.
# Steps that differ by less take as long.
STEP_TIME_TOLERANCE = 1e-6


def rescaled(plan: Plan, rescaling: Rescaled | None) -> Plan:
    """The plan with its times multiplied by the ratio and its rates divided by it; the plan itself without one.

    Shares, memory and what a single operator or event takes on the host stay.
    """
    if rescaling is None:
        return plan
    ratio = rescaling.ratio
    breakdown = Breakdown(**{part: ratio * getattr(plan.breakdown, part) for part in PARTS})
    step, mfu = ratio * plan.step_time_s, plan.mfu / ratio
    return plan.model_copy(
        update={
            "rescaled": rescaling,
            "count_on": None,  # a run of this very work says it
            "step_time_s": step,
            "tokens_per_s": plan.tokens_per_s / ratio,
            "tokens_per_s_per_npu": plan.tokens_per_s_per_npu / ratio,
            "mfu": mfu,
            "breakdown": breakdown,
            "headroom": headroom(step, mfu, breakdown),
            "expected_step_time_s": _times(ratio, plan.expected_step_time_s),
            "days": _times(ratio, plan.days),
            "npu_hours": _times(ratio, plan.npu_hours),
            "uncertainty": plan.uncertainty.model_copy(
                update={"low_s": ratio * plan.uncertainty.low_s, "high_s": ratio * plan.uncertainty.high_s}
            ),
            "stages": tuple(
                stage.model_copy(update={"forward_s": ratio * stage.forward_s, "backward_s": ratio * stage.backward_s})
                for stage in plan.stages
            ),
            "memory_menu": tuple(
                item.model_copy(
                    update={
                        "added_ms": ratio * item.added_ms,
                        "gib_per_ms": None if item.gib_per_ms is None else item.gib_per_ms / ratio,
                    }
                )
                for item in plan.memory_menu
            ),
        }
    )


def at_level(plan: Plan, rescaling: Rescaled | None) -> Plan:
    """A plan of other cards at the level of the measured run, where nobody measured on its own: see `rescaled`."""
    return rescaled(plan, rescaling) if plan.rescaled is None else plan


SLOT_TIMES = ("start_s", "end_s", "compute_s", "communication_s", "host_s")


def rescaled_timeline(timeline: PipelineTimeline, rescaling: Rescaled | None) -> PipelineTimeline:
    """The timeline with every instant multiplied by the ratio."""
    if rescaling is None:
        return timeline
    slots = (
        slot.model_copy(update={name: rescaling.ratio * getattr(slot, name) for name in SLOT_TIMES})
        for slot in timeline.slots
    )
    stages = (
        stage.model_copy(update={name: rescaling.ratio * seconds for name, seconds in stage})
        for stage in timeline.stages
    )
    times = {"makespan_s": rescaling.ratio * timeline.makespan_s, "step_time_s": rescaling.ratio * timeline.step_time_s}
    return timeline.model_copy(update={**times, "slots": tuple(slots), "stages": tuple(stages)})


def slower_than_measured(plans: Sequence[Plan], rescaling: Rescaled | None) -> tuple[str, ...]:
    """That the measured run is faster than the first of the plans is predicted to be, where it is."""
    if (
        rescaling is None
        or not plans
        or plans[0].step_time_s <= (1.0 + STEP_TIME_TOLERANCE) * rescaling.measured_step_time_s
    ):
        return ()
    took, first = rescaling.measured_step_time_s, plans[0].step_time_s
    return (Message("ranking.measured_run_faster", run=rescaling.run, took=took, first=first),)


def _times(ratio: float, value: float | None) -> float | None:
    return None if value is None else ratio * value
