"""plan(spec) -> PlanSet, predictions and why-not. Pure: no database, no HTTP."""

from __future__ import annotations

from autodeploy.search import legality, plan_search, predictions, prepared, questions
from autodeploy.search.legality import launch_rules
from autodeploy.search.plan_search import check_space, fastest_s, plan, search_size
from autodeploy.search.predictions import breakdowns_in, estimate, lowered, place, predict, reestimate, timeline
from autodeploy.search.prepared import budget_of, describe_hashes, prepare, profile_hash
from autodeploy.search.progress import Progress
from autodeploy.search.questions import complete, operators, strategy_bounds, why_not
from autodeploy.search.ranking.one_strategy import Predicted, Prepared
from autodeploy.space.rules import LaunchRules

__all__ = [
    "LaunchRules",
    "Planner",
    "Predicted",
    "Prepared",
    "Progress",
    "breakdowns_in",
    "budget_of",
    "check_space",
    "complete",
    "describe_hashes",
    "estimate",
    "fastest_s",
    "launch_rules",
    "lowered",
    "operators",
    "place",
    "plan",
    "predict",
    "prepare",
    "profile_hash",
    "reestimate",
    "search_size",
    "strategy_bounds",
    "timeline",
    "why_not",
]


class Planner:
    """The functions of this module that analyses, services and jobs call; tests have others in their place."""

    plan = staticmethod(plan_search.plan)
    fastest_s = staticmethod(plan_search.fastest_s)
    check_space = staticmethod(plan_search.check_space)
    search_size = staticmethod(plan_search.search_size)
    estimate = staticmethod(predictions.estimate)
    reestimate = staticmethod(predictions.reestimate)
    place = staticmethod(predictions.place)
    lowered = staticmethod(predictions.lowered)
    timeline = staticmethod(predictions.timeline)
    breakdowns_in = staticmethod(predictions.breakdowns_in)
    launch_rules = staticmethod(legality.launch_rules)
    prepare = staticmethod(prepared.prepare)
    describe_hashes = staticmethod(prepared.describe_hashes)
    profile_hash = staticmethod(prepared.profile_hash)
    complete = staticmethod(questions.complete)
    why_not = staticmethod(questions.why_not)
    operators = staticmethod(questions.operators)
    strategy_bounds = staticmethod(questions.strategy_bounds)
