"""Pictures of a search as SVG text: candidates by fate, and two schedules under each other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from autodeploy.costs.stages.inner_problem import chunk_times
from autodeploy.search.placement.evaluate import Evaluator
from cost_models.schedule import simulate
from cost_models.schedule.orders import NONE

if TYPE_CHECKING:
    import numpy as np

    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.search.placement.evaluate import InnerPlan

WIDTH, LEFT, RIGHT = 760, 220, 90
COLOURS = {"forward": "#3a6fb7", "backward": "#d97a3a", "pair": "#4c9a7a"}
LANE, SPACE = 14, 34


def _frame(height: float, title: str, body: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" font-family="sans-serif" font-size="12">'
    )
    parts = [
        head,
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height:g}" fill="#ffffff"/>',
        f'<text x="16" y="20" font-weight="bold" fill="#222222">{escape(title)}</text>',
    ]
    return "\n".join([*parts, *body, "</svg>"]) + "\n"


def fate_bars(title: str, counts: dict[str, int]) -> str:
    """One bar for each fate, the largest on top, on a logarithmic scale."""
    rows = sorted(((name, n) for name, n in counts.items() if n), key=lambda row: (-row[1], row[0]))
    top = math.log10(max(n for _, n in rows)) or 1.0
    body = []
    for place, (name, count) in enumerate(rows):
        y = 36 + 20 * place
        width = max(2.0, (WIDTH - LEFT - RIGHT) * math.log10(max(count, 1)) / top)
        body.append(f'<text x="{LEFT - 8}" y="{y + 11}" text-anchor="end" fill="#222222">{escape(name)}</text>')
        body.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="14" fill="#3a6fb7"/>')
        body.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 11}" fill="#444444">{count:,}</text>')
    return _frame(44 + 20 * len(rows), title, body)


def schedules(title: str, problem: InnerProblem, rows: dict[str, InnerPlan]) -> str:
    """Slots of every stage by name of a plan, on one time axis."""
    evaluator = Evaluator(problem)
    found = {}
    for name, plan in rows.items():
        times = chunk_times(problem, plan.layout[None], plan.applied[None])
        line = simulate(
            evaluator.problem.order,
            times.forward_s,
            times.backward_s,
            times.hidden_pair_s,
            times.sends,
            keep_times=True,
        )
        assert line.start_s is not None
        assert line.end_s is not None
        found[name] = (float(line.makespan_s[0]), line.start_s, line.end_s)
    longest = max(makespan for makespan, _, _ in found.values())
    body, y = [], 36.0
    for name, (makespan, start, end) in found.items():
        body.append(f'<text x="16" y="{y + 12:g}" fill="#222222">{escape(name)}: {makespan:.2f} s</text>')
        y += 20
        body += _lanes(evaluator, start, end, longest, y)
        y += LANE * problem.pp + SPACE - 20
    for place, (kind, colour) in enumerate(COLOURS.items()):
        body.append(f'<rect x="{16 + 120 * place}" y="{y:g}" width="12" height="12" fill="{colour}"/>')
        body.append(f'<text x="{34 + 120 * place}" y="{y + 11:g}" fill="#222222">{kind}</text>')
    return _frame(y + 24, title, body)


def _lanes(evaluator: Evaluator, start: np.ndarray, end: np.ndarray, longest: float, y: float) -> list[str]:
    """One path a stage and kind of slot."""
    order, scale = evaluator.problem.order, (WIDTH - 60 - 16) / longest
    body = []
    for stage in range(order.pp):
        drawn: dict[str, list[str]] = {kind: [] for kind in COLOURS}
        for slot in range(start.shape[1]):
            ahead, back = order.forward_chunk[stage, slot] != NONE, order.backward_chunk[stage, slot] != NONE
            if ahead or back:
                kind = "pair" if ahead and back else "forward" if ahead else "backward"
                left, right = 60 + start[stage, slot] * scale, 60 + end[stage, slot] * scale
                drawn[kind].append(f"M{left:.1f} {y + LANE * stage:g}h{max(right - left - 0.2, 0.1):.1f}v{LANE - 3}")
        body.append(f'<text x="16" y="{y + LANE * stage + 10:g}" fill="#444444">stage {stage}</text>')
        for kind, paths in drawn.items():
            if paths:
                # Each slot is a closed rectangle: right, down, back to the left edge.
                shape = "".join(f"{path}H{path[1:].split(' ')[0]}z" for path in paths)
                body.append(f'<path d="{shape}" fill="{COLOURS[kind]}"/>')
    return body
