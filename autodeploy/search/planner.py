"""plan(spec) -> PlanSet, predictions and why-not. Pure: no database, no HTTP."""

from __future__ import annotations

from autodeploy.search.legality import launch_rules
from autodeploy.search.plan_search import check_space, fastest_s, plan, search_size
from autodeploy.search.predictions import breakdowns_in, estimate, lowered, place, predict, reestimate, timeline
from autodeploy.search.prepared import budget_of, describe_hashes, prepare, profile_hash
from autodeploy.search.progress import Progress
from autodeploy.search.questions import complete, operators, strategy_bounds, why_not
from autodeploy.search.ranking.one_strategy import Predicted, Prepared
from autodeploy.space.rules import LaunchRules
from autodeploy.specs.answers import WhyNot

__all__ = [
    "LaunchRules",
    "Predicted",
    "Prepared",
    "Progress",
    "WhyNot",
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
