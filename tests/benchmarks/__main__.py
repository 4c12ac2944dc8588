"""`python -m tests.benchmarks`: one JSON line a figure, {"figure", "value", "unit", "case"}."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from autodeploy import planner
from autodeploy.evaluation.sweep import sweep
from autodeploy.importers.spec_file import read_spec_file
from autodeploy.solver.search_space import candidate_grid
from autodeploy.strategies.grid_rules import judge_grid
from tests.support.figures import report

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLANNED = ("deepseek_v3_cloudmatrix_384", "llama2_70b_32", "qwen3_235b_128", "pangu_ultra_moe_718b_6144")


def sweep_speed() -> None:
    """Distinct legal candidates a second, float64, all parts and worst-stage memory, tables included, one core."""
    case = "deepseek_v3_cloudmatrix_384"
    prepared = planner.prepare(read_spec_file(EXAMPLES / f"{case}.yaml"))
    context = prepared.context
    started = time.perf_counter()
    found = candidate_grid(prepared.spec.search, context, prepared.profile, prepared.choice)
    enumerated = time.perf_counter()
    legal = judge_grid(found, context.facts, "any")[0].candidates()
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
        started = time.perf_counter()
        result = planner.plan(spec)
        report("seconds_to_plan", time.perf_counter() - started, "s", case)
        report("gap", result.optimality.gap if result.optimality.gap is not None else 1.0, "fraction", case)
        report("step_time", result.plans[0].step_time_s, "s", case)


def main() -> None:
    """All figures."""
    sweep_speed()
    plan_times()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report("peak_memory_of_the_process", peak, "GiB", "all of the above")


if __name__ == "__main__":
    main()
