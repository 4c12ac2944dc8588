"""Strong scaling: the same model and global batch on a quarter to four times the cards, each by a short search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.search.ranking.measured_speed import at_level
from autodeploy.specs.answers import ScalingReport, ScalingRow
from autodeploy.specs.cluster import MAX_NPUS
from autodeploy.specs.search import SHORT_SEARCH
from hardware_profiles import load_profile
from hardware_profiles.errors import ProfileError

if TYPE_CHECKING:
    from autodeploy.search.planner import Planner
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
SEARCH = {**SHORT_SEARCH, "effort": 0.1, "time_limit_s": 30.0}


def scaling(spec: Spec, best: Plan, *, planner: Planner) -> ScalingReport:
    """The best step for each number of cards; the spec's own row is its best plan.

    best : the best plan that a search for this spec found.
    """
    rows = []
    for count in card_counts(spec, best.num_npus_used):
        plan = best if count == best.num_npus_used else _best_on(spec, count, planner)
        plan = None if plan is None else at_level(plan, best.rescaled)
        rows.append(_row(count, plan, best))
    return ScalingReport(rows=tuple(rows), engine_version=ENGINE_VERSION)


def card_counts(spec: Spec, own: int) -> tuple[int, ...]:
    """Multiples of the spec's own cards in whole nodes, its own among them."""
    try:
        per_node = load_profile(spec.cluster.profile, overrides=spec.cluster.overrides).npus_per_node
    except ProfileError:
        per_node = 1
    counts = {own}
    for factor in FACTORS:
        count = round(own * factor)
        count = count // per_node * per_node if count >= per_node else count
        if 1 <= count <= MAX_NPUS:
            counts.add(count)
    return tuple(sorted(counts))


def _best_on(spec: Spec, num_npus: int, planner: Planner) -> Plan | None:
    changes = {"num_npus": num_npus, "blocks": None, "spare_npus": 0}
    asked = spec.model_copy(
        update={
            "cluster": spec.cluster.model_copy(update=changes),
            "search": spec.search.model_copy(update=SEARCH),
            "strategy": None,
            "run": None,
        }
    )
    try:
        plans = planner.plan(asked, alone=True).plans
    except SpecError:  # so many cards can't be arranged, or the space is enormous
        return None
    return plans[0] if plans else None


def _row(num_npus: int, plan: Plan | None, best: Plan) -> ScalingRow:
    if plan is None:
        return ScalingRow(num_npus=num_npus)
    return ScalingRow(
        num_npus=num_npus,
        strategy=plan.strategy,
        step_time_s=plan.step_time_s,
        tokens_per_s=plan.tokens_per_s,
        tokens_per_s_per_npu=plan.tokens_per_s_per_npu,
        efficiency=plan.tokens_per_s_per_npu / best.tokens_per_s_per_npu,
        mfu=plan.mfu,
        peak_memory_gib=plan.peak_memory_gib,
        days=plan.days,
    )
