"""Why a strategy is not the plan, and where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.errors import SpecError
from autodeploy.evaluation.inputs.build_context import healthy_npus, profile_of
from autodeploy.evaluation.steps.one_strategy import candidate_for, judged_candidate
from autodeploy.messages import Message, joined
from autodeploy.planner.predictions import estimate, lowered, predict, reestimate
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
    return _explained(spec, strategy, best, alone=False)


def _explained(spec: Spec, strategy: Strategy, known: PlanSet | None, *, alone: bool) -> WhyNot:
    """`why_not`; alone: without a search for plans to compare the answer with."""

    def best() -> PlanSet:
        return known or plan(spec)

    others = None if alone and known is None else best
    if spec.training.rl is not None:
        from autodeploy.rl_planning.why_not import why_not_rl

        return why_not_rl(spec, strategy, search=plan, best=others)
    prepared = prepare(spec)
    if not is_whole(strategy, moe=spec.model.is_moe):
        beside = known.plans[0].strategy if known is not None and known.plans else None
        return explain_partly_given(
            Asked(spec, strategy, prepared.profile, prepared.choice, prepared.context, prepared.identity.ratio, beside),
            search=plan,
            predicted=lambda whole: predict(prepared, whole).plan,
            best=others,
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
        best=best,
    )


def complete(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> Plan:
    """The plan of a strategy: as it stands where it `is_whole`, else as `why_not` completes it.

    Parameters
    ----------
    best : as of `why_not`; None searches for nothing to compare it with.

    Raises
    ------
    SpecError
        if its degrees contradict the cluster, or no plan has what it gives.
    """
    if is_whole(strategy, moe=spec.model.is_moe):
        return estimate(spec.model_copy(update={"strategy": strategy}))
    answer = _explained(spec, strategy, best, alone=True)
    if answer.completed is None:
        near = joined((Message("common.place", place=n.change, message=n.effect) for n in answer.nearest), "semicolon")
        raise SpecError(answer.message, path="/strategy", hint=near if answer.nearest else "")
    return reestimate(spec, answer.completed)


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
