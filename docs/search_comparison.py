"""Writes docs/search.md and its pictures: plans against published scripts, even layouts, greedy.

    python -m docs.search_comparison

All in one run and under one model, so that only the strategies differ. Published scripts are those of the shipped
records of MindSpeed-LLM. Seconds in the pictures are of the machine that made them; everything else repeats.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.calibration.shipped.tables import shipped_records
from autodeploy.kit.errors import SpecError
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.search_space import SearchSpace, search_space
from autodeploy.search.choices.layouts import templates, to_layout
from autodeploy.search.placement.evaluate import Evaluator
from autodeploy.search.placement.solve import greedy
from autodeploy.search.planner import budget_of, estimate, prepare
from autodeploy.search.ranking.reference_plans import baseline_1f1b
from autodeploy.specs.reading import read_spec_file
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.spec import Spec
from docs.line_chart import Chart, svg
from docs.schema_tables import table
from docs.search_pictures import fate_bars, schedules

if TYPE_CHECKING:
    from autodeploy.search.branch_and_bound.candidate import Solved
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.search.placement.evaluate import InnerPlan

DOCS = Path(__file__).resolve().parent
EXAMPLES = DOCS.parent / "examples"
PAGE = DOCS / "search.md"
NOTE = "<!-- Made by `python -m docs.search_comparison` from the code. Change the code, not this page. -->"
SCRIPTS = ("ML020", "ML022", "ML030", "ML031", "ML036", "ML043", "ML049", "ML062", "ML086")
"""Records of MindSpeed-LLM's README on 16 cards or more, the latest of each model."""
SPECS = ("qwen3_235b_128", "llama2_70b_32", "deepseek_v3_cloudmatrix_384", "pangu_ultra_moe_718b_6144")
DRAWN = "pangu_ultra_moe_718b_6144"
HEAD = """# Search quality: plans, published scripts, even layouts and a greedy heuristic

Predicted seconds per step on the same cards with the same batch. *Plan*: the fastest plan of the search. *Gap*: how
much faster any strategy could be, at most (optimality gap). *Script*: the strategy of the published script. *Even*:
evenly distributed layers with full recomputation. *Greedy*: the degrees of the plan with the best template layout
under a greedy choice of memory options, which may differ between stages even where the target can't launch that.
`*`: predicted not to fit in memory. `-`: not available.
"""


@dataclass
class Case:
    """One spec with its search."""

    name: str
    spec: Spec
    searched: SearchSpace
    frontier: SearchState
    script_s: float | None
    script_fits: bool
    even_s: float | None
    seconds: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def best(self) -> Solved | None:
        """The plan, if there is one."""
        return self.frontier.best[0] if self.frontier.best else None

    def greedy(self) -> InnerPlan | None:
        """The best template of the plan's candidate under the greedy's choices, stages free to differ."""
        if self.best is None:
            return None
        problem = replace(self.best.problem, uniform_options=False)
        return greedy(Evaluator(problem), to_layout(problem, templates(problem)))


def searched_case(name: str, spec: Spec) -> Case:
    """The search of a spec; its strategy, if any, is the published one."""
    prepared = prepare(spec)
    started = time.monotonic()
    searched = search_space(prepared.spec, prepared.profile, prepared.choice, prepared.context)
    seconds: list[float] = []
    gaps: list[float] = []

    def watch(frontier: SearchState, _: int) -> None:
        if frontier.incumbent_s and frontier.bound_s is not None:
            seconds.append(time.monotonic() - started)
            gaps.append(100.0 * max(0.0, 1.0 - frontier.bound_s / frontier.incumbent_s))

    frontier = best_first(searched.request(spec.search.top_k, spec.search.gap, budget_of(spec), watch=watch))
    script = None
    if spec.strategy is not None:
        try:
            script = estimate(spec)
        except SpecError:
            script = None
    even = baseline_1f1b(prepared.spec, prepared.profile, prepared.context, prepared.identity)
    return Case(
        name,
        spec,
        searched,
        frontier,
        script.step_time_s if script else None,
        bool(script and script.fits),
        even.step_time_s if even else None,
        seconds,
        gaps,
    )


def cases() -> list[Case]:
    """The published scripts, then the examples."""
    compared = []
    records = {record.id: record for record in shipped_records()}
    for identity in SCRIPTS:
        record = records[identity]
        spec = Spec(
            model=record.model,
            cluster=record.cluster,
            training=record.training,
            search=SearchSpec(target="mindspeed-llm", top_k=1),
            strategy=record.strategy,
        )
        compared.append(searched_case(f"{record.model.name}, {record.cluster.num_npus} cards ({identity})", spec))
    for name in SPECS:
        compared.append(searched_case(name, read_spec_file(EXAMPLES / f"{name}.yaml")))
    return compared


def row(case: Case) -> tuple[str, ...]:
    """One line of the table."""
    if case.best is None:
        return (case.name, "-", "-", "-", "-", "-")
    plan_s, other = case.best.solution.step_s, case.greedy()
    bound, candidate = case.frontier.bound_s, case.best.candidate
    degrees = f"TP{candidate.tp[0]} PP{candidate.pp[0]} VPP{candidate.vpp[0]} EP{candidate.ep[0]}"
    return (
        case.name,
        f"{plan_s:.2f} ({degrees})",
        "-" if bound is None else f"{100.0 * max(0.0, 1.0 - bound / plan_s):.1f} %",
        _beside(case.script_s, plan_s) + ("" if case.script_fits or case.script_s is None else " *"),
        _beside(case.even_s, plan_s),
        _beside(None if other is None else other.step_s, plan_s),
    )


def _beside(seconds: float | None, plan_s: float) -> str:
    return "-" if seconds is None else f"{seconds:.2f} ({100.0 * (seconds / plan_s - 1.0):+.1f} %)"


def pictures(case: Case) -> dict[str, str]:
    """SVG text by name."""
    counts = case.searched.counts
    fates = dict(counts.rejected) | {
        "does not fit": counts.too_big,
        "ruled out by a bound or left open": len(case.searched.candidates) - case.frontier.solved,
        "solved": case.frontier.solved,
    }
    drawn = {"search_fates": fate_bars(f"{case.name}: candidates by fate", fates)}
    if case.seconds:
        end = math.ceil(case.seconds[-1])
        grid = [end * step / 40 for step in range(41)]
        # The gap is what the latest report said; before the first there is none, and the first is drawn.
        latest = np.maximum(np.searchsorted(case.seconds, grid, side="right") - 1, 0)
        chart = Chart(
            f"{case.name}: the gap over time",
            "seconds since the search began",
            "gap (%)",
            grid,
            {"gap": [case.gaps[place] for place in latest.tolist()]},
            log2=False,
            y_max=max(case.gaps),
        )
        drawn["search_gap"] = svg(chart)
    if case.best is not None:
        problem, plan = case.best.problem, case.best.plan
        free = replace(problem, uniform_options=False)
        sizes = to_layout(problem, templates(problem))
        # The template whose stages differ least is the even one.
        even = sizes[int(np.argmin(sizes.sum(axis=(2, 3)).std(axis=1)))]
        other = greedy(Evaluator(free), even[None])
        rows = {"plan": plan}
        if other is not None:
            rows["even layout, greedy choices"] = other
        drawn["search_schedules"] = schedules(f"{case.name}: the plan against an even layout", problem, rows)
    return drawn


def main() -> None:
    """Write the page and its pictures."""
    compared = cases()
    columns = ("run", "plan", "gap", "script", "even", "greedy")
    drawn = pictures(next(case for case in compared if case.name == DRAWN))
    text = f"{NOTE}\n\n{HEAD}\n{table(columns, [row(case) for case in compared])}\n"
    for name, picture in drawn.items():
        (DOCS / "explanation" / "figures" / f"{name}.svg").write_text(picture, encoding="utf-8")
        text += f"\n![{name.replace('_', ' ')}](explanation/figures/{name}.svg)\n"
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
