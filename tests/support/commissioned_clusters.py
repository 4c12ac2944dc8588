"""Clusters with hidden numbers, commissioned: launches on few nodes come back, then the whole job is predicted.

Hidden are numbers of the chip, of the software and its host, of the network at scale, and by how much the slowest of
the nodes that a launch happens to get lags behind. With `misfit` the clusters are of another form than the model, too.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.analysis.rehearsal.rehearse import launches_before, rehearse
from autodeploy.kit.errors import UnsupportedError
from autodeploy.search import planner
from autodeploy.service.clusters.calibration import StoredRun, calibrate_cluster
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.spec import parse_spec, spec_of
from hardware_profiles import load_profile
from tests.support.hidden_profiles import MOST, _at, _hidden, _noise, _trace

if TYPE_CHECKING:
    from autodeploy.analysis.rehearsal.rehearse import Rehearsal
    from autodeploy.specs.planset import Breakdown, Plan, PlanSet
    from autodeploy.specs.spec import Spec

# preset, profile, cards, sequences of a step
JOBS: dict[str, tuple[str, str, int, int]] = {
    "llama3.1-70b A2": ("llama3.1-70b", "ascend-800t-a2", 256, 512),
    "qwen3-235b A2": ("qwen3-235b-a22b", "ascend-800t-a2", 256, 2048),
    "glm-4.5 A3": ("glm-4.5", "cloudmatrix-384", 128, 1024),
    "deepseek-v3 A3": ("deepseek-v3", "cloudmatrix-384", 256, 3840),
}
AT_SCALE = ("efficiency.device_scatter", "efficiency.message_half_size", "efficiency.dispatch_loss")
SCALE_GAP = 2.0  # of these numbers, uniform in the logarithm
LAG, STRAGGLERS, STRAGGLER_LAG = 0.008, 0.01, 0.05
"""Every node lags behind by |N(0, 0.008)|; one in a hundred by 0.05 more."""
TOP_K = 6
STEP_OVERHEAD_S, CONTENTION, PACING, CONGESTION, OF_CUT, ROUTING = 0.2, 0.15, 0.01, 0.03, 0.03, 0.5
"""Of another form, at most: seconds of a step outside the model; slowing of computing by messages hidden behind it;
share of a step for every doubling of micro batches; slowing of messages on 32 nodes, in proportion to nodes; standard
deviation of what a cut of the work is off by, of its own; share of imbalance missed on 32 nodes."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Behaviour of a cluster that no formula of the model has: drawn once a cluster."""

    overhead_s: float
    contention: float
    pacing: float
    congestion: float
    routing: float
    seed: int

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Misfit:
        """Of one cluster."""
        low, high = rng.uniform(size=3), rng.uniform(-1.0, 1.0, size=2)
        amounts = (
            STEP_OVERHEAD_S * low[0],
            CONTENTION * low[1],
            PACING * high[0],
            CONGESTION * low[2],
            ROUTING * high[1],
        )
        return cls(*map(float, amounts), int(rng.integers(2**31)))

    def of(self, step: Breakdown, plan: Plan) -> Breakdown:
        """The parts of a step as they really are."""
        cut, nodes = plan.strategy, plan.num_npus_used / 8
        work = f"{cut.tp} {cut.cp} {cut.etp} {cut.micro_batch_size} {cut.recompute.granularity}"
        own = np.random.default_rng([self.seed, zlib.crc32(work.encode())]).standard_normal()
        hidden = plan.hidden
        beside = max(hidden.ep_share_step, hidden.tp_share, hidden.cp_share, hidden.dp_share)
        slower = (1.0 + self.contention * beside) * math.exp(OF_CUT * own)
        moved = {name: slower * getattr(step, name) for name in ("compute_s", "recompute_s", "pipeline_bubble_s")}
        crowded = 1.0 + self.congestion * nodes / 32.0
        moved |= {name: crowded * getattr(step, name) for name in ("exposed_ep_s", "exposed_dp_s", "exposed_pp_s")}
        paced = 1.0 + self.pacing * math.log2(plan.micro_batches)
        moved = {name: paced * seconds for name, seconds in moved.items()}
        moved["imbalance_s"] = step.imbalance_s * (1.0 + self.routing * min(1.0, nodes / 32.0))
        moved["host_bound_s"] = step.host_bound_s + self.overhead_s
        return step.model_copy(update=moved)


@dataclass(frozen=True, slots=True)
class Commissioned:
    """One cluster: errors of the whole job's step, hidden over predicted less one, and the regret of the choice.

    inside : whether a noisy run of the job lies in the 80 % interval. With `_before`: without the launches.
    """

    error_before: float
    error: float
    inside_before: bool
    inside: bool
    half_width_before: float
    half_width: float
    regret_before: float
    regret: float


@cache
def job(name: str) -> PlanSet:
    """The search of a job."""
    preset, profile, npus, batch = JOBS[name]
    return planner.plan(
        parse_spec(
            {
                "model": preset,
                "cluster": {"profile": profile, "num_npus": npus, "overlay": "none"},
                "training": {"seq_length": 4096, "global_batch_size": batch},
                "search": {"target": "mindspeed-llm", "time_limit_s": 900, "top_k": TOP_K},
            }
        )
    )


@cache
def launches(name: str) -> tuple[Rehearsal, ...]:
    """Those before the recommended plan's own."""
    plan_set = job(name)
    made = []
    for nodes in launches_before(plan_set, plan_set.plans[0]):
        try:
            made.append(rehearse(plan_set, plan_set.plans[0], nodes, planner))
        except UnsupportedError:
            continue
    return tuple(made)


def commissioned(name: str, count: int, seed: int, *, misfit: bool = False) -> list[Commissioned]:
    """So many clusters of a job; misfit: of another form than the model."""
    rng = np.random.default_rng(seed)
    plan_set = job(name)
    return [_one(plan_set, launches(name), rng, misfit) for _ in range(count)]


def _one(plan_set: PlanSet, before: tuple[Rehearsal, ...], rng: np.random.Generator, misfit: bool) -> Commissioned:
    spec, plan = spec_of(plan_set.search), plan_set.plans[0]
    true_s = np.full(len(plan_set.plans), np.inf)
    while abs(true_s[0] / plan.step_time_s - 1.0) > MOST:
        hidden = _hidden(spec, rng) | _at_scale(spec, rng)
        lags = _lags(plan.num_npus_used // load_profile(spec.cluster.profile).npus_per_node, rng)
        form = Misfit.drawn(rng) if misfit else None
        true_s = np.array([_step(spec, each, hidden, lags, form).step_time_s for each in plan_set.plans])
    runs: list[StoredRun] = []
    for launch in before:
        small = _step(launch.spec, launch.plan, hidden, lags[: launch.nodes], form)
        log = MeasuredRun(step_time_s=small.step_time_s * _noise(rng))
        runs = [
            StoredRun(f"{launch.nodes} {m.source}", launch.spec, launch.plan, m) for m in (_trace(small, rng), log)
        ] + runs
    overlay, _ = calibrate_cluster("hidden", runs, planner)
    known = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overlay": overlay})})
    after = [planner.reestimate(known, each) for each in plan_set.plans]
    chosen = min(range(len(after)), key=lambda place: after[place].step_time_s)
    job_s = true_s[0] * _noise(rng)
    return Commissioned(
        error_before=true_s[0] / plan.step_time_s - 1.0,
        error=true_s[0] / after[0].step_time_s - 1.0,
        inside_before=_holds(plan, job_s),
        inside=_holds(after[0], job_s),
        half_width_before=_half_width(plan),
        half_width=_half_width(after[0]),
        regret_before=float(true_s[0] / true_s.min() - 1.0),
        regret=float(true_s[chosen] / true_s.min() - 1.0),
    )


def _at_scale(spec: Spec, rng: np.random.Generator) -> dict[str, float]:
    document = load_profile(spec.cluster.profile).document.model_dump(mode="json")
    values = {path: _at(document, path) for path in AT_SCALE}
    gap = math.log(SCALE_GAP)
    return {path: value * math.exp(rng.uniform(-gap, gap)) for path, value in values.items() if value}


def _lags(nodes: int, rng: np.random.Generator) -> Any:
    """By how much each node lags behind the best [nodes]."""
    return np.abs(LAG * rng.standard_normal(nodes)) + STRAGGLER_LAG * (rng.uniform(size=nodes) < STRAGGLERS)


def _step(spec: Spec, plan: Plan, hidden: dict[str, float], lags: Any, form: Misfit | None) -> Breakdown:
    step = planner.breakdowns_in(_on(spec, hidden, lags), plan, (), [{}])[0]
    return step if form is None else form.of(step, plan)


def _on(spec: Spec, hidden: dict[str, float], lags: Any) -> Spec:
    """The spec on the hidden cluster, on nodes that lag so."""
    update = {"overrides": hidden, "slowest_device_factor": 1.0 + float(lags.max())}
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update=update)})


def _holds(plan: Plan, measured_s: float) -> bool:
    return plan.uncertainty.low_s <= measured_s <= plan.uncertainty.high_s


def _half_width(plan: Plan) -> float:
    return math.sqrt(plan.uncertainty.high_s / plan.uncertainty.low_s) - 1.0
