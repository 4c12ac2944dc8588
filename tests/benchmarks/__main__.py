"""`python -m tests.benchmarks`: one JSON line a figure, {"figure", "value", "unit", "case"}."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np

from autodeploy import planner
from autodeploy.evaluation.sweep import sweep
from autodeploy.importers.spec_file import read_spec_file
from autodeploy.solver.search_space import enumerate_candidates
from autodeploy.strategies.rules import judge
from tests.benchmarks.inner import greedy_devices, inner_problems
from tests.support.figures import report

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLANNED = ("deepseek_v3_cloudmatrix_384", "llama2_70b_32", "qwen3_235b_128", "pangu_ultra_moe_718b_6144")


def sweep_speed() -> None:
    """Distinct legal candidates a second, float64, all parts and worst-stage memory, tables included, one core."""
    case = "deepseek_v3_cloudmatrix_384"
    prepared = planner.prepare(read_spec_file(EXAMPLES / f"{case}.yaml"))
    context = prepared.context
    started = time.perf_counter()
    found = enumerate_candidates(prepared.spec.search, context, prepared.profile, prepared.choice)
    enumerated = time.perf_counter()
    legal = found.take(np.flatnonzero(judge(found, context.facts, "any").legal))
    judged = time.perf_counter()
    sweep(legal, context)
    swept = time.perf_counter()
    report("strategies_per_second", len(legal) / (swept - judged), "1/s", case)
    report("enumerated_per_second", len(found) / (enumerated - started), "1/s", case)
    report("seconds_per_million_enumerated", (swept - started) / len(found) * 1e6, "s", case)


def plan_times() -> None:
    """Seconds from a parsed spec to the top 5, and the proven gap."""
    for case in PLANNED:
        spec = read_spec_file(EXAMPLES / f"{case}.yaml")
        seen: list[planner.Progress] = []
        started = time.perf_counter()
        result = planner.plan(spec, progress=seen.append)
        for limit in (3.0, 5.0, 30.0):
            gaps = [event.gap for event in seen if event.elapsed_s <= limit and event.gap is not None]
            report(f"gap_after_{limit:g}_s", min(gaps, default=1.0), "fraction", case)
        report("seconds_to_plan", time.perf_counter() - started, "s", case)
        report("gap", result.optimality.gap if result.optimality.gap is not None else 1.0, "fraction", case)
        report("step_time", result.plans[0].step_time_s, "s", case)


def main() -> None:
    """All figures."""
    sweep_speed()
    plan_times()
    inner_problems()
    greedy_devices()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report("peak_memory_of_the_process", peak, "GiB", "all of the above")


if __name__ == "__main__":
    main()
