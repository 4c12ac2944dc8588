"""A second planner for tests of the service: answers at once, or slowly, or not, as the model's name says.

It has the functions of `autodeploy.search.planner` and may be named wherever that module may, also in other processes.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from autodeploy.kit.errors import ProfileError, SearchCancelled
from autodeploy.search.branch_and_bound.search_space import SearchSize
from autodeploy.specs.answers import StrategyBound, StrategyBounds, WhyNot
from autodeploy.specs.plan_details import OperatorReport, PipelineTimeline, Slot
from autodeploy.specs.planset import Breakdown
from autodeploy.specs.spec import canonical_json, spec_hash
from autodeploy.stack.features import FEATURES
from tests import factories

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.steps.scenarios import Perturbation, Scenario
    from autodeploy.search.planner import LaunchRules
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.planset import Plan, PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy

SLOW = "slow"  # runs until it is cancelled, at most SLOW_S
SLOWER_THAN_EXPECTED = "slower than expected"  # the same, and nobody expects it
LASTING = "lasting"  # takes LASTING_S
CRASHES = "crashes"  # kills its own process
FAILS = "fails"  # raises
HUNGRY = "hungry"  # takes memory until there is none
ABORTS = "aborts"  # ends itself, as native code without memory does
INFEASIBLE = "infeasible"
SLOW_S = 60.0
LASTING_S = 2.2


@dataclass(frozen=True)
class Progress:
    """The fields of `autodeploy.search.planner.Progress`."""

    kind: Literal["enumerated", "incumbent", "bound", "solved", "finished"]
    message: str
    enumerated: int = 0
    rejected: int = 0
    too_big: int = 0
    pruned: int = 0
    solved: int = 0
    incumbent_s: float | None = None
    bound_s: float | None = None
    gap: float | None = None
    elapsed_s: float = 0.0
    rejected_by_rule: dict[str, int] = field(default_factory=dict)


def plan(
    spec: Spec,
    *,
    search_id: str = "",
    created_at: str = "",
    progress: Callable[[Progress], None] | None = None,
    should_cancel: Callable[[], bool] | None = None,
    alone: bool = False,
) -> PlanSet:
    """The PlanSet of `tests.factories`, after whatever the model's name asks for."""
    report = progress or (lambda item: None)
    by_rule = {"expert_world_divides": 120_000, "batch_divides": 30_720}
    strategies = Progress("enumerated", "184,320 strategies", enumerated=184_320, rejected=150_720)
    report(replace(strategies, rejected_by_rule=by_rule))
    behaviour = spec.model.name
    if behaviour == CRASHES:
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == HUNGRY:
        held = [bytearray(1 << 26) for _ in range(1 << 10)]
        raise AssertionError(f"{len(held)} blocks of memory")
    if behaviour == ABORTS:
        os.abort()
    if behaviour == FAILS:
        raise RuntimeError("the planner found a bug in itself")
    if behaviour in (SLOW, SLOWER_THAN_EXPECTED):
        _wait(report, should_cancel or (lambda: False))
    if behaviour == LASTING:
        time.sleep(LASTING_S)
    if behaviour == INFEASIBLE:
        return factories.infeasible_plan_set(search_id, spec=spec, created_at=created_at)
    report(Progress("finished", "done", enumerated=184_320, solved=88, incumbent_s=134.2, bound_s=132.5, gap=0.013))
    n_plans = spec.search.top_k
    found = factories.plan_set(n_plans, search_id=search_id, spec=spec, created_at=created_at)
    search = found.search.model_copy(update={"profile_hash": profile_hash(spec.cluster)})
    found = found.model_copy(update={"search": search})
    return factories.cautious(found) if spec.search.risk_terms.rule == "averse" else found


def _wait(report: Callable[[Progress], None], should_cancel: Callable[[], bool]) -> None:
    started_s = time.monotonic()
    solved = 0
    while (elapsed_s := time.monotonic() - started_s) < SLOW_S:
        solved += 1
        better = Progress("incumbent", "better plan", solved=solved, elapsed_s=elapsed_s)
        report(replace(better, incumbent_s=200.0 - elapsed_s, bound_s=100.0 + elapsed_s))
        if should_cancel():
            raise SearchCancelled
        time.sleep(0.05)


def estimate(spec: Spec, *, features: frozenset[str] | None = None) -> Plan:
    """The best plan's figures with the spec's own strategy."""
    return factories.plan(1, spec=spec, strategy=spec.strategy)


def launch_rules(spec: Spec, *, features: frozenset[str] | None = None) -> LaunchRules:
    """No rule, every feature."""
    from autodeploy.search.planner import (
        LaunchRules,
    )  # late: hundreds of processes start with this planner, few need it

    return LaunchRules((), frozenset({"full", "norm"}), frozenset(FEATURES))


def place(spec: Spec, *, features: frozenset[str] | None = None) -> Plan:
    """The best plan's figures; every change of degrees is a little faster."""
    assert spec.strategy is not None
    changed = factories.plan(1, spec=spec, strategy=spec.strategy)
    return changed.model_copy(update={"tokens_per_s_per_npu": 1.01 * changed.tokens_per_s_per_npu})


def fastest_s(spec: Spec) -> float:
    """The best plan's step time on so many cards."""
    return factories.plan(1, spec=spec).step_time_s


def complete(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> Plan:
    """The best plan's figures with this strategy."""
    return factories.plan(1, spec=spec, strategy=strategy)


def why_not(spec: Spec, strategy: Strategy, *, best: PlanSet | None = None) -> WhyNot:
    """A little slower than the best."""
    step_time_s = 1.1 * factories.plan(1, spec=spec).step_time_s
    return WhyNot(message="legal and fits, but slower", step_time_s=step_time_s, against_best_pct=10.0)


def timeline(spec: Spec, strategy: Strategy, *, slots: bool = True) -> PipelineTimeline:
    """One micro batch forward and backward on every stage."""
    shown = []
    for stage in range(strategy.pp):
        for kind, start_s in (("forward", 1.0 * stage), ("backward", 2.0 * strategy.pp - stage - 1.0)):
            micro_batch = {f"{kind}_micro_batch": 0, f"{kind}_chunk": 0}
            shown.append(Slot(stage=stage, kind=kind, start_s=start_s, end_s=start_s + 1.0, **micro_batch))
    makespan_s = 2.0 * strategy.pp
    return PipelineTimeline(
        pp=strategy.pp,
        vpp=1,
        micro_batches=1,
        makespan_s=makespan_s,
        step_time_s=makespan_s + 1.0,
        slots=tuple(shown) if slots else (),
    )


def strategy_bounds(spec: Spec, most: int) -> StrategyBounds:
    """Two strategies, of which as many are told as wanted."""
    axes: dict[str, int | str] = {"tp": 2, "pp": 4, "vpp": 1, "cp": 1, "micro_batch_size": 1, "schedule": "1f1b"}
    sample = [
        StrategyBound(axes=axes | {"tp": tp}, dp=12, num_npus=384, step_time_s=150.0, peak_memory_gib=20.0, mfu=0.3)
        for tp in (1, 2)
    ]
    return StrategyBounds(total=len(sample), sample=tuple(sample[:most]))


def operators(spec: Spec, plan: Plan) -> OperatorReport:
    """No kind of layer."""
    return OperatorReport(
        plan_id=plan.plan_id,
        step_time_s=plan.step_time_s,
        micro_batches=1,
        layers_per_stage=1.0,
        peak_flops=1.0,
        hbm_bytes_per_s=1.0,
        layers=(),
    )


def reestimate(spec: Spec, plan: Plan) -> Plan:
    """The plan's figures times what its cluster's overlay says of its software; later plans suffer more from it."""
    overlay = spec.cluster.overlay
    factor = (
        1.0 if isinstance(overlay, str) else overlay.get("release_factors", {}).get("current", {}).get("value", 1.0)
    )
    step_time_s = plan.step_time_s * factor ** (1.0 if plan.rank > 1 else 2.0)
    rate = plan.tokens_per_s_per_npu * plan.step_time_s / step_time_s
    return plan.model_copy(update={"step_time_s": step_time_s, "tokens_per_s_per_npu": rate})


def breakdowns_in(
    spec: Spec, plan: Plan, numbers: Sequence[Perturbation], worlds: Sequence[Scenario]
) -> list[Breakdown]:
    """The step of `reestimate` as one part, where the software has moved; nothing else moves it."""
    software = {number.name for number in numbers if "release_current" in number.multiplies}
    power, step_time_s = 1.0 if plan.rank > 1 else 2.0, reestimate(spec, plan).step_time_s
    moved = [power * sum(by for name, by in world.items() if name in software) for world in worlds]
    return [Breakdown(compute_s=step_time_s * math.exp(each)) for each in moved]


def lowered(spec: Spec, plan: Plan) -> tuple[Context, Candidates]:
    """The planner's own: what a rehearsal compares is of real layers."""
    from autodeploy.search.planner import lowered as lowered_by_planner

    return lowered_by_planner(spec, plan)


def prepare(spec: Spec) -> object:
    """Refuses what `describe_hashes` refuses."""
    return describe_hashes(spec)


def check_space(spec: Spec) -> None:
    """It looks at no space, so none is too large."""


def search_size(spec: Spec) -> SearchSize:
    """Of no search, or of a slow one."""
    return SearchSize(candidates=100_000 if spec.model.name == SLOW else 0, layers=61, effort=10.0)


def describe_hashes(spec: Spec) -> tuple[str, str, str]:
    """Hashes as the real planner's; knows one profile."""
    if spec.cluster.profile != "cloudmatrix-384":
        raise ProfileError(
            f"there is no profile {spec.cluster.profile!r}", path="/cluster/profile", hint="known: cloudmatrix-384"
        )
    return spec_hash(spec), profile_hash(spec.cluster), factories.ENGINE_VERSION


def profile_hash(cluster: ClusterSpec) -> str:
    """The one profile it knows; an overlay's numbers make it another."""
    if isinstance(cluster.overlay, str):
        return factories.PROFILE_HASH
    numbers = {name: value for name, value in cluster.overlay.items() if name != "report"}
    return hashlib.sha256(canonical_json(numbers).encode()).hexdigest()
