"""`python -m tests.benchmarks`: one JSON line a figure, {"figure", "value", "unit", "case"}; `--small`: seconds."""

from __future__ import annotations

import resource
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodeploy.search import planner
from autodeploy.search.choices.effort import DEFAULT
from autodeploy.specs.reading import read_spec_file
from tests.benchmarks.inner import DEVICES, greedy_devices, inner_problems
from tests.benchmarks.sweep_speed import RUNS, SIZES, SweepSpeed, cold_start, growth
from tests.support.figures import report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLANNED = ("deepseek_v3_cloudmatrix_384", "llama2_70b_32", "qwen3_235b_128", "pangu_ultra_moe_718b_6144")
LARGE = "pangu_ultra_moe_718b_6144"
SMALL = ("../tests/benchmarks/small",)
SMALL_SIZES: tuple[dict[str, dict[str, Any]], ...] = ({"search": {"fix": {"tp": 1, "cp": 1}}}, {"search": {}})
SMALL_EFFORTS = {(1, "default"): DEFAULT}


def plan_times(names: Sequence[str] = PLANNED, large: str = LARGE) -> None:
    """Seconds from a parsed spec to the top 5, and the proven gap."""
    one_chunk = {"effort": "deep", "gap": 0.0, "fix": {"vpp": 1}}
    for name, changes in (*((name, {}) for name in names), (large, {"effort": "deep"}), (large, one_chunk)):
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
        gap = result.optimality.gap
        report("gap", 1.0 if gap is None else gap, "fraction", case)
        report("step_time", result.plans[0].step_time_s, "s", case)


def deeper(names: Sequence[str] = PLANNED) -> None:
    """By how much a deep search of the neutral ranking finds a faster plan than the default's."""
    for name in names:
        spec = read_spec_file(EXAMPLES / f"{name}.yaml")
        for target in dict.fromkeys((spec.search.target, "any")):
            steps = []
            for effort in ("default", "deep"):
                changes = {"target": target, "effort": effort, "risk": "neutral", "top_k": 1}
                search = type(spec.search).model_validate({**spec.search.model_dump(exclude_unset=True), **changes})
                found = planner.plan(spec.model_copy(update={"search": search}), alone=True)
                steps.append(found.plans[0].step_time_s)
            report("deep_improves_pct", 100.0 * (steps[0] / steps[1] - 1.0), "%", f"{name}, target {target}")


def main(*, small: bool = False) -> None:
    """All figures; `small`: of the least that has any, to see that every part works."""
    runs, planned, large = (1, SMALL, SMALL[0]) if small else (RUNS, PLANNED, LARGE)
    cold_start(runs)
    sweeps = [
        SweepSpeed(read_spec_file(EXAMPLES / f"{case}.yaml"), case) for case in dict.fromkeys((large, planned[0]))
    ]
    spec = read_spec_file(EXAMPLES / f"{large}.yaml")
    parts: list[Callable[[], None]] = [
        partial(growth, spec, large, SMALL_SIZES if small else SIZES),
        partial(plan_times, planned, large),
        partial(deeper, planned),
        partial(inner_problems, SMALL_EFFORTS, 1, 1) if small else inner_problems,
        partial(greedy_devices, 30 if small else DEVICES),
    ]
    for part in parts:
        for sweep in sweeps:
            sweep.measure(runs)
        part()
    for sweep in sweeps:
        sweep.report()
    for who, name in ((resource.RUSAGE_SELF, "the_process"), (resource.RUSAGE_CHILDREN, "its_second_process")):
        peak = resource.getrusage(who).ru_maxrss / 2**20
        report(f"peak_memory_of_{name}", peak, "GiB", "all of the above")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
