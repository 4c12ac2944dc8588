"""What pages say of a plan of reinforcement learning, beyond one of pre-training."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from autodeploy import figures
from autodeploy.figures.labels import phase_name
from autodeploy.reports.rl_lines import rl_lines

if TYPE_CHECKING:
    from autodeploy.figures.layout import Figure
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan


def rl_context(plan: Plan | None, lang: Language) -> dict[str, Any]:
    """What the template of its card reads; nothing of other plans."""
    if plan is None or plan.rl is None:
        return {"rl": None}
    return {"rl": plan.rl, "rl_told": rl_lines(plan, lang), "rl_phase": partial(phase_name, lang=lang)}


def rl_charts(plan: Plan | None, lang: Language) -> dict[str, Figure]:
    """Its pictures, by the id of the element that shows them."""
    if plan is None or plan.rl is None:
        return {}
    return {
        "chart-phases": figures.phases_timeline(plan.rl, lang),
        "chart-batch": figures.batch_over_time(plan.rl, lang),
    }
