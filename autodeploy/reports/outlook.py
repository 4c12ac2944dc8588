"""What a plan still loses, and what less memory or fewer cards would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.texts import part_name, report_text, titled
from autodeploy.reports.wording import degrees, percent, seconds

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import ParetoPoint, Plan, PlanSet

MOST_LOSSES = 3
MOST_POINTS = 4


def headroom_line(plan: Plan, lang: Language) -> str | None:
    """The largest losses of a step with what MFU gains without each, and MFU without them all."""
    losses = plan.headroom[:MOST_LOSSES]
    if not losses:
        return None
    parts = [
        report_text(
            lang,
            "loss",
            part=report_text(lang, "below_peak") if loss.part == "compute_s" else part_name(lang, loss.part),
            seconds=f"{seconds(loss.seconds)} s",
            points=f"{loss.mfu_points:+.1f}",
        )
        for loss in losses
    ]
    text = report_text(lang, "headroom", losses=report_text(lang, "comma").join(parts))
    without = report_text(lang, "mfu_without", mfu=percent(losses[-1].mfu_up_to_here))
    return text + report_text(lang, "semicolon") + without


def pareto_line(plan_set: PlanSet, lang: Language) -> str | None:
    """The fastest plan and what takes less memory or fewer cards than all faster ones; None where nothing does."""
    points = plan_set.pareto
    if len(points) < 2:
        return None
    same_cards = len({point.num_npus for point in points}) == 1
    shown = points if len(points) <= MOST_POINTS else (*points[: MOST_POINTS - 1], points[-1])
    told = [_point(point, lang, same_cards=same_cards) for point in shown]
    told += ["..."] if len(shown) < len(points) else []
    return titled(lang, report_text(lang, "pareto", count=len(points)), report_text(lang, "semicolon").join(told))


def _point(point: ParetoPoint, lang: Language, *, same_cards: bool) -> str:
    name = degrees(point.strategy, with_dp=False) if point.rank is None else f"#{point.rank}"
    text = f"{name} {seconds(point.step_time_s)} s {point.peak_memory_gib:.1f} GiB"
    return text if same_cards else f"{text} {report_text(lang, 'cards', count=f'{point.num_npus:,}')}"
