"""How fast a space is enumerated, judged, evaluated and ranked, on one core; tables are built anew in every run."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.costs.inputs import expert_balance
from autodeploy.costs.sweep.sweep import sweep_tree
from autodeploy.search import planner
from autodeploy.search.branch_and_bound.search_space import candidate_grid
from autodeploy.space.grid import judge_grid
from tests.support.figures import report

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec

RUNS = 5  # the fastest counts: whatever else the machine does only adds time
TOP = 1000
NO_MODES = {"reuse_fp32_param": "off", "swap_optimizer": "off", "virtual_optimizer": "off"}
# Changes of the spec for Pangu Ultra MoE on 6144 cards that make spaces of about 10^5 to 10^6.5 candidates.
SIZES: tuple[dict[str, dict[str, Any]], ...] = (
    {"search": {"features": NO_MODES, "fix": {"cp": 1}, "allow": {"tp": [4, 8]}}},
    {"search": {"features": NO_MODES, "fix": {"cp": 1}}},
    {"search": {"features": NO_MODES}},
    {"search": {"features": {"swap_optimizer": "off", "virtual_optimizer": "off"}}},
    {},
    {"search": {"features": {"virtual_optimizer": "off"}}, "training": {"seq_length": 16_384}},
)


def cold_start(runs: int = RUNS) -> None:
    """Seconds until the library is there: a new interpreter that only imports it."""
    taken = []
    for _ in range(runs):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import autodeploy.search.planner"], check=True)
        taken.append(time.perf_counter() - started)
    report("cold_start", min(taken), "s", "import autodeploy.search.planner")


class SweepSpeed:
    """Distinct legal candidates a second of one core, all in float64; and a million, from the axes to the best.

    Every part and worst-stage memory; parts that no mode of the optimizer's states changes once a run. Seconds are of
    this process with one thread. Measured in rounds with other work between them: a machine that others share is slow
    for seconds at a time.
    """

    def __init__(self, spec: Spec, case: str) -> None:
        self._search, self._case, self._prepared = spec.search, case, planner.prepare(spec)
        self._rates: list[float] = []
        self._millions: list[float] = []

    def measure(self, runs: int = RUNS) -> None:
        """One round."""
        prepared, context = self._prepared, self._prepared.context
        for _ in range(runs):
            forget_tables()
            started = time.process_time()
            grid = candidate_grid(self._search, context, prepared.profile, prepared.choice)
            legal, _ = judge_grid(grid, context.facts, "any")
            judged = time.process_time()
            table = sweep_tree(legal, context)
            swept = time.process_time()
            best = table.fastest(TOP)
            ranked = time.process_time()
            assert len(table.parts) == 12
            assert np.isfinite(table.after_recompute_s[best]).all()
            self._rates.append(len(legal) / (swept - judged))
            self._millions.append((ranked - started) / len(grid) * 1e6)
            del table

    def report(self) -> None:
        """The fastest of all rounds, and how much slower the run in the middle was."""
        report("strategies_per_second", max(self._rates), "1/s", self._case)
        report("strategies_per_second_median", float(np.median(self._rates)), "1/s", self._case)
        report("seconds_per_million_enumerated_to_ranked", min(self._millions), "s", self._case)


def forget_tables() -> None:
    """What a run before has learned about routers: tables count as part of a run."""
    for name in ("_placed_of_file", "_capped_factor", "_series", "_sampled", "_migrated", "_without_hot"):
        getattr(expert_balance, name).cache_clear()


def growth(spec: Spec, case: str, sizes: tuple[dict[str, dict[str, Any]], ...] = SIZES) -> None:
    """Slope of log(time to the first feasible plan) over log(candidates enumerated)."""
    points = []
    first_plan(changed(spec, sizes[0]))  # start-up: what the first search of a process imports
    for changes in sizes:
        forget_tables()
        candidates, seconds = first_plan(changed(spec, changes))
        report("seconds_to_first_plan", seconds, "s", f"{case}, {candidates} candidates")
        points.append((math.log10(candidates), math.log10(seconds)))
    slope = float(np.polyfit(*zip(*points, strict=True), 1)[0])
    report("growth_slope", slope, "log s / log candidates", case)


def first_plan(spec: Spec) -> tuple[int, float]:
    """Candidates enumerated, and seconds from a parsed spec to the first plan that fits."""
    found: list[planner.Progress] = []

    def watch(event: planner.Progress) -> None:
        if event.incumbent_s is not None and not found:
            found.append(event)

    planner.plan(spec, progress=watch, should_cancel=lambda: bool(found))
    return found[0].enumerated, found[0].elapsed_s


def changed(spec: Spec, changes: dict[str, dict[str, Any]]) -> Spec:
    """The spec with some fields replaced."""
    document = spec.model_dump(mode="json", exclude_unset=True)
    for section, fields in changes.items():
        document[section] = {**document.get(section, {}), **fields}
    return type(spec).model_validate(document)
