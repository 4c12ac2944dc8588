"""A hidden profile generates a rehearsal and the full run: how near does the prediction come after the rehearsal?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.analysis.rehearsal.rehearse import rehearse
from autodeploy.analysis.trace_comparison import predicted_parts
from autodeploy.search import planner
from autodeploy.service.clusters.calibration import StoredRun, calibrate_cluster
from autodeploy.specs.measured_run import MeasuredRun, ProfilerTimes
from autodeploy.specs.spec import Spec
from hardware_profiles import load_profile
from tests.support.rehearsed_plans import searched

if TYPE_CHECKING:
    from autodeploy.specs.planset import Breakdown, Plan

NOISE = 0.035  # standard deviation of the logarithm of a repeated step time, or of a part of it
SLOWED = 0.05  # a profiled step takes up to so much longer
GAP = 1.4  # every hidden number is off by a factor of up to this, uniform in its logarithm
MOST = 0.4  # the largest gap of the full job's step that such a profile may leave; others are drawn anew
# A fraction of a peak that stands near one is drawn downwards only.
NUMBERS = (
    *("efficiency.gemm_peak_fraction", "efficiency.attention_forward", "efficiency.attention_backward"),
    *("efficiency.hbm", "efficiency.expert_rate", "host.issue_us_per_op", "host.sync_us", "fixed_costs.vector_op_us"),
    "release_factors.current",
)


@dataclass(frozen=True, slots=True)
class Trial:
    """One hidden profile: step time of the full plan over the predicted one, less one.

    before, after : the hidden step time, as the profile predicts it and after the rehearsal. measured : after it, of
        one noisy run of the full plan. inside_before, inside : whether that run lies in the predicted interval.
    """

    before: float
    after: float
    measured: float
    inside_before: bool
    inside: bool


@cache
def trials(name: str, nodes: str, count: int, seed: int, *, profiled: bool = False) -> tuple[Trial, ...]:
    """So many hidden profiles of a plan of `rehearsed_plans`, each with one rehearsal.

    profiled : a trace of the rehearsal is given back beside its log.
    """
    plan_set, plan = searched(name)
    spec = Spec.model_validate(plan_set.search.spec)
    rehearsal = rehearse(plan_set, plan, nodes, planner)
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        true_s = math.inf
        while abs(true_s / plan.step_time_s - 1.0) > MOST:
            hidden = _hidden(spec, rng)
            true_s = planner.breakdowns_in(_on(spec, hidden), plan, (), [{}])[0].step_time_s
        small = planner.breakdowns_in(_on(rehearsal.spec, hidden), rehearsal.plan, (), [{}])[0]
        small_s = small.step_time_s * _noise(rng)
        full_s = true_s * _noise(rng)
        measured = [MeasuredRun(step_time_s=small_s), *([_trace(small, rng)] if profiled else [])]
        runs = [StoredRun(f"run_{number}_{m.source}", rehearsal.spec, rehearsal.plan, m) for m in measured]
        overlay, _ = calibrate_cluster("hidden", runs, planner)
        cluster = spec.cluster.model_copy(update={"overlay": overlay})
        after = planner.reestimate(spec.model_copy(update={"cluster": cluster}), plan)
        found.append(
            Trial(
                true_s / plan.step_time_s - 1.0,
                true_s / after.step_time_s - 1.0,
                full_s / after.step_time_s - 1.0,
                _holds(plan, full_s),
                _holds(after, full_s),
            )
        )
    return tuple(found)


def _hidden(spec: Spec, rng: np.random.Generator) -> dict[str, float]:
    """Numbers of a profile that nobody knows: rates of operators, links, host and software."""
    profile = load_profile(spec.cluster.profile)
    document = profile.document.model_dump(mode="json")
    paths = [*NUMBERS, *(f"{tier.name}.efficiency" for tier in profile.tiers)]
    hidden = {}
    for path in paths:
        value = _at(document, path)
        if value is None:
            continue
        factor = math.exp(rng.uniform(-math.log(GAP), math.log(GAP)))
        is_fraction = path.startswith("efficiency.") or path.endswith(".efficiency")
        hidden[path] = min(1.0, value * factor) if is_fraction else value * factor
    return hidden


def _at(document: dict[str, object], path: str) -> float | None:
    """The number under a dotted path of a profile; None where it has none there."""
    found: object = document
    for name in path.split("."):
        if not isinstance(found, dict) or name not in found:
            tiers = document.get("tiers")
            named = [tier for tier in tiers if tier.get("name") == name] if isinstance(tiers, list) else []
            if not named:
                return None
            found = named[0]
        else:
            found = found[name]
    value = found.get("value") if isinstance(found, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _on(spec: Spec, numbers: dict[str, float]) -> Spec:
    """The spec on the hidden cluster."""
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"overrides": numbers})})


def _trace(step: Breakdown, rng: np.random.Generator) -> MeasuredRun:
    """A profiled step: every part with a noise of its own, all of them a little slower."""
    slower = 1.0 + SLOWED * rng.uniform()
    parts = {f"{name}_s": seconds * slower * _noise(rng) for name, seconds in predicted_parts(step).items()}
    times = ProfilerTimes(**parts)
    return MeasuredRun(source="profiler", step_time_s=times.step_time_s, profiler=times)


def _noise(rng: np.random.Generator) -> float:
    return float(np.exp(NOISE * rng.standard_normal()))


def _holds(plan: Plan, measured_s: float) -> bool:
    return plan.uncertainty.low_s <= measured_s <= plan.uncertainty.high_s
