"""Functions that a process of the call pool runs: of the module, so that another process finds them by name."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from autodeploy.kit.errors import SpecError
from autodeploy.service.runner.planning import load_planner
from autodeploy.specs.resources import MovedDocument
from autodeploy.specs.spec import parse_spec, spec_of
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.search.planner import Planner
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.resources import ClusterDocument
    from autodeploy.specs.spec import Spec


# How a cluster's overlay moves one stored plan, and which of its factors do it.
MIN_TOLD_LOG_CHANGE = 5e-4  # of the logarithm of the step time: less is not told


def moved_plan(plan_set: PlanSet, plan: Plan, cluster: ClusterDocument, planner: Planner) -> MovedDocument:
    """The plan predicted anew under the overlay, beside how it was found.

    What a factor alone moves is its slope under the overlay times its logarithm; slopes of large factors differ between
    both ends, so that these add up to the whole only roughly.
    """
    spec = spec_of(plan_set.search)
    spec = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overlay": dict(cluster.overlay)})})
    after = planner.reestimate(spec, plan)
    slopes, factors = after.uncertainty.sensitivity, cluster.report.get("factors", {})
    parts = {name: slopes.get(name, 0.0) * math.log(factor) for name, factor in factors.items()}
    changed = (name for name in parts if abs(parts[name]) >= MIN_TOLD_LOG_CHANGE)
    largest = sorted(changed, key=lambda name: (-abs(parts[name]), name))
    return MovedDocument(
        plan_id=plan.plan_id,
        old_step_time_s=plan.step_time_s,
        old_low_s=plan.uncertainty.low_s,
        old_high_s=plan.uncertainty.high_s,
        step_time_s=after.step_time_s,
        low_s=after.uncertainty.low_s,
        high_s=after.uncertainty.high_s,
        moved_by={name: round(parts[name], 6) for name in largest},
        old_p_fits=plan.p_fits,
        p_fits=after.p_fits,
    )


SMALL_SPEC = {
    "model": "qwen3-0.6b",
    "cluster": {"profile": "ascend-800t-a2", "num_npus": 8},
    "training": {"seq_length": 4096, "global_batch_size": 16},
}
WARM_UP_CANDIDATES = 10
WARM_UP_DEGREES: Final[dict[str, Any]] = {"pp": 2, "vpp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}


def make_ready(planner: str) -> None:
    """Answers what is asked most for a small model: rules and profiles are read, compiled loops and solver loaded."""
    import autodeploy.search.cp_sat.model  # noqa: F401 - some half a second, and no question below needs it

    spec, asked = parse_spec(SMALL_SPEC), load_planner(planner)
    spec = spec.model_copy(update={"strategy": Strategy(pp=2)})
    asked.operators(spec, asked.estimate(spec))
    asked.timeline(spec, Strategy(pp=2))
    free = spec.model_copy(update={"strategy": None})
    asked.strategy_bounds(free, WARM_UP_CANDIDATES)
    for tp in (2, 3):  # a plan, and why there is none
        with suppress(SpecError):
            asked.complete(free, Strategy(**WARM_UP_DEGREES, tp=tp))


def make_ready_to_read() -> None:
    """Imports the readers of every kind of document."""
    from autodeploy.analysis import launch_requests as check_intake  # noqa: F401 - that is all


def rules_broken(planner: Planner, spec: Spec, strategies: Sequence[Strategy]) -> list[tuple[str, ...]]:
    """Rules that each strategy breaks, in words; one that can't be judged breaks what its refusal says."""
    broken = []
    for strategy in strategies:
        try:
            rules = planner.launch_rules(spec.model_copy(update={"strategy": strategy}))
            broken.append(tuple(rule.text for rule in rules.broken))
        except SpecError as error:
            broken.append(tuple(each.message for each in error.errors))
    return broken
