"""`python -m tests.benchmarks`: one JSON line a figure, {"figure", "value", "unit", "case"}."""

from __future__ import annotations

import resource
import time
from functools import partial
from pathlib import Path

from autodeploy import planner
from autodeploy.importers.spec_file import read_spec_file
from tests.benchmarks.inner import greedy_devices, inner_problems
from tests.benchmarks.sweep_speed import SweepSpeed, cold_start, growth
from tests.support.figures import report

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLANNED = ("deepseek_v3_cloudmatrix_384", "llama2_70b_32", "qwen3_235b_128", "pangu_ultra_moe_718b_6144")
LARGE = "pangu_ultra_moe_718b_6144"


def plan_times() -> None:
    """Seconds from a parsed spec to the top 5, and the proven gap."""
    one_chunk = {"effort": "deep", "gap": 0.0, "fix": {"vpp": 1}}
    for name, changes in (*((name, {}) for name in PLANNED), (LARGE, {"effort": "deep"}), (LARGE, one_chunk)):
        spec = read_spec_file(EXAMPLES / f"{name}.yaml")
        search = type(spec.search).model_validate({**spec.search.model_dump(exclude_unset=True), **changes})
        spec = spec.model_copy(update={"search": search})
        case = ", ".join((name, *(f"{key} {value}" for key, value in changes.items())))
        seen: list[planner.Progress] = []
        started = time.perf_counter()
        result = planner.plan(spec, progress=seen.append)
        for limit in (3.0, 5.0, 30.0):
            gaps = [event.gap for event in seen if event.elapsed_s <= limit and event.gap is not None]
            report(f"gap_after_{limit:g}_s", min(gaps, default=1.0), "fraction", case)
        report("seconds_to_plan", time.perf_counter() - started, "s", case)
        report("gap", result.optimality.gap if result.optimality.gap is not None else 1.0, "fraction", case)
        report("step_time", result.plans[0].step_time_s, "s", case)


def deeper() -> None:
    """By how much a deep search of the neutral ranking finds a faster plan than the default's."""
    for name in PLANNED:
        spec = read_spec_file(EXAMPLES / f"{name}.yaml")
        for target in dict.fromkeys((spec.search.target, "any")):
            steps = []
            for effort in ("default", "deep"):
                changes = {"target": target, "effort": effort, "risk": "neutral", "top_k": 1}
                search = type(spec.search).model_validate({**spec.search.model_dump(exclude_unset=True), **changes})
                found = planner.plan(spec.model_copy(update={"search": search}), alone=True)
                steps.append(found.plans[0].step_time_s)
            report("deep_improves_pct", 100.0 * (steps[0] / steps[1] - 1.0), "%", f"{name}, target {target}")


def main() -> None:
    """All figures."""
    cold_start()
    sweeps = [SweepSpeed(read_spec_file(EXAMPLES / f"{case}.yaml"), case) for case in (LARGE, PLANNED[0])]
    large = read_spec_file(EXAMPLES / f"{LARGE}.yaml")
    for others in (partial(growth, large, LARGE), plan_times, deeper, inner_problems, greedy_devices):
        for sweep in sweeps:
            sweep.measure()
        others()
    for sweep in sweeps:
        sweep.report()
    for who, name in ((resource.RUSAGE_SELF, "the_process"), (resource.RUSAGE_CHILDREN, "its_second_process")):
        peak = resource.getrusage(who).ru_maxrss / 2**20
        report(f"peak_memory_of_{name}", peak, "GiB", "all of the above")


if __name__ == "__main__":
    main()
