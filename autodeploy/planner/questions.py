"""Why a strategy is not the plan, and where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.evaluation.inputs.build_context import healthy_npus, profile_of
from autodeploy.evaluation.steps.one_strategy import candidate_for, judged_candidate
from autodeploy.planner.predictions import lowered, predict
from autodeploy.planner.prepared import context_for, prepare
from autodeploy.planner.search import plan
from autodeploy.ranking.legality import nearest_changes
from autodeploy.ranking.operator_report import operator_report
from autodeploy.ranking.partly_given import Asked, explain_partly_given, is_whole
from autodeploy.ranking.place import place as place_candidate
from autodeploy.ranking.why_not import explain_rejection

if TYPE_CHECKING:
    from autodeploy.specs.operators import OperatorReport
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.specs.what_if import WhyNot


def why_not(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> WhyNot:
    """Why a strategy is not the plan: the rule it breaks, the memory it lacks, or what it would cost.

    Axes that it does not give are those of the best plan that has the others; `is_whole` says what stands as it is.

    Parameters
    ----------
    best : what a search for this spec found, where that is known; None searches.
    """
    if spec.training.rl is not None:
        from autodeploy.rl_planning.why_not import why_not_rl

        return why_not_rl(spec, strategy, search=plan, best=lambda: best or plan(spec))
    prepared = prepare(spec)
    if not is_whole(strategy, moe=spec.model.is_moe):
        return explain_partly_given(
            Asked(spec, strategy, prepared.profile, prepared.choice, prepared.context, prepared.identity.ratio),
            search=plan,
            predicted=lambda whole: predict(prepared, whole).plan,
            best=lambda: best or plan(spec),
        )
    context = context_for(prepared, strategy, None) if strategy.fsdp else prepared.context
    candidate = judged_candidate(context, strategy)
    return explain_rejection(
        candidate,
        context,
        spec,
        nearest=lambda: nearest_changes(
            candidate, strategy, context, spec, prepared.profile, prepared.choice, prepared.identity
        ),
        estimated=lambda: predict(prepared, strategy).plan,
        placed=lambda: place_candidate(candidate, context, spec, prepared.identity),
        best=lambda: best or plan(spec),
    )


def operators(spec: Spec, plan: Plan) -> OperatorReport:
    """Where the time of a plan of this spec goes, down to the operators of each kind of layer; of post-training, of one
    update.

    Raises
    ------
    SpecError
        if the plan's degrees contradict the cluster.
    """
    if spec.training.rl is not None:
        from autodeploy.rl_planning.one_update import context_of_update, trainers

        how = plan.strategy.rl
        assert how is not None
        profile = profile_of(spec.cluster)
        strategy = plan.strategy.model_copy(update={"rl": None})
        npus = trainers(how, healthy_npus(profile, spec.cluster))
        context = context_of_update(spec, profile, strategy, how.pack_tokens, npus=npus)
        return operator_report(plan, candidate_for(context, strategy), context)
    context, candidate = lowered(spec, plan)
    return operator_report(plan, candidate, context)
