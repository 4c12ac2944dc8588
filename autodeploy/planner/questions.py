"""What a target's rules say of a strategy, why it is not the plan, and where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.evaluation.inputs.build_context import healthy_npus, profile_of
from autodeploy.evaluation.steps.one_strategy import as_candidate, candidate_for, facts_of_placement, judged_candidate
from autodeploy.planner.predictions import estimate, lowered, place, predict
from autodeploy.planner.prepared import context_for, judged_context, prepare
from autodeploy.planner.search import plan
from autodeploy.ranking.legality import nearest_changes
from autodeploy.ranking.operator_report import operator_report
from autodeploy.ranking.partly_given import Asked, completed, explain_partly_given, is_whole
from autodeploy.ranking.place import place as place_candidate
from autodeploy.ranking.why_not import explain_rejection
from autodeploy.specs.following import FOLLOWS
from autodeploy.specs.spec import no_strategy
from autodeploy.specs.strategy import Recompute
from autodeploy.strategies.launch_rules import LaunchRules
from autodeploy.strategies.memory_rules import launchable
from autodeploy.strategies.rule_sentences import told
from autodeploy.strategies.rules import broken_rules, values_of

if TYPE_CHECKING:
    from autodeploy.ranking.prepared import Prepared
    from autodeploy.specs.check import BrokenRule
    from autodeploy.specs.operators import OperatorReport
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from autodeploy.specs.what_if import WhyNot


def launch_rules(spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules:
    """Rules of the spec's target that its strategy breaks, and what the target could launch instead.

    A strategy whose degrees contradict the cluster is judged too.

    Raises
    ------
    SpecError
        if the spec has no strategy, or asks for something that can't be planned with.
    """
    if spec.strategy is None:
        raise no_strategy()
    of_generation: tuple[BrokenRule, ...] = ()
    if spec.training.rl is not None:
        from autodeploy.rl_planning.launchable import broken_by  # a tenth of a second, for post-training alone
        from autodeploy.rl_planning.update_layouts import update_alone

        profile = profile_of(spec.cluster)
        of_generation = broken_by(spec, profile, healthy_npus(profile, spec.cluster))
        spec = update_alone(spec, spec.strategy)
    assert spec.strategy is not None
    context, on = judged_context(spec, spec.strategy, features)
    target = spec.search.target
    candidate = as_candidate(context, spec.strategy, possible=False)
    facts = {**context.facts, **facts_of_placement(spec.strategy)}
    broken = [rule for rule in broken_rules(candidate, facts, target)[0] if rule.is_told]
    return LaunchRules(
        (*told(broken, values_of(candidate, facts)), *of_generation),
        launchable(candidate, context.facts, target),
        on,
    )


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
            _asked(prepared, strategy, best),
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


def _asked(prepared: Prepared, strategy: Strategy, best: PlanSet | None) -> Asked:
    beside = best.plans[0].strategy if best is not None and best.plans else None
    ratio = prepared.identity.ratio
    return Asked(prepared.spec, strategy, prepared.profile, prepared.choice, prepared.context, ratio, beside)


def complete(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> Plan:
    """The plan of a strategy: as it stands where it `is_whole`, else as `why_not` completes it.

    One that is illegal or fits nowhere is predicted all the same: with the memory choices that come nearest.

    Parameters
    ----------
    best : what a search for this spec found, where that is known.

    Raises
    ------
    SpecError
        if its degrees contradict the cluster.
    """
    given = _with(spec, strategy)
    if is_whole(strategy, moe=spec.model.is_moe):
        return estimate(given)
    if spec.training.rl is not None:
        from autodeploy.rl_planning.why_not import completed_rl

        return completed_rl(spec, strategy, search=plan) or estimate(given)
    prepared = prepare(spec)
    found = completed(
        _asked(prepared, strategy, best),
        search=plan,
        predicted=lambda whole: predict(prepared, whole).plan,
        result=best,
    )
    if found is not None:
        return found
    fixed = {name: value for name, value in spec.search.fix.items() if name in FOLLOWS}
    open_ = {name: value for name, value in ({"etp": 1} | fixed).items() if name not in strategy.model_fields_set}
    whole = strategy.model_copy(update=open_)
    leanest = {} if "recompute" in strategy.model_fields_set else {"recompute": Recompute(granularity="full")}
    return place(_with(spec, whole)) or estimate(_with(spec, whole.model_copy(update=leanest)))


def _with(spec: Spec, strategy: Strategy) -> Spec:
    return spec.model_copy(update={"strategy": strategy})


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
