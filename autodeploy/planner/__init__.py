"""plan(spec) -> PlanSet, predictions and why-not. Pure: no database, no HTTP."""

from __future__ import annotations

from autodeploy.planner.bounds import strategy_bounds
from autodeploy.planner.legality import launch_rules
from autodeploy.planner.predictions import (
    breakdowns_in,
    estimate,
    lowered,
    place,
    predict,
    reestimate,
    timeline,
)
from autodeploy.planner.prepared import budget_of, describe_hashes, prepare, profile_hash
from autodeploy.planner.questions import complete, operators, why_not
from autodeploy.planner.search import check_space, fastest_s, plan, search_size
from autodeploy.progress import Progress
from autodeploy.ranking.one_strategy import Predicted
from autodeploy.ranking.prepared import Prepared
from autodeploy.specs.what_if import WhyNot
from autodeploy.strategies.launch_rules import LaunchRules

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
