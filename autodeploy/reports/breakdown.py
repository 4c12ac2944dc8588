"""Where a step's time goes, in whole percents that add up to 100, and what MFU gains without its losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.texts import bracketed, part_name, report_text, titled
from autodeploy.reports.wording import percent, seconds
from autodeploy.specs.planset import PARTS

if TYPE_CHECKING:
    from collections.abc import Collection

    from autodeploy.messages import Language
    from autodeploy.specs.planset import Breakdown, Plan

MOST_LOSSES = 3
LEAST_SHARE_SHOWN = 0.01
"""Smaller parts of a step are folded into "other"."""


def percentages(breakdown: Breakdown, always: Collection[str] = ()) -> dict[str, int]:
    """Whole percents by part of the step, largest remainders rounded up so that the sum is 100.

    always : parts that are shown however small they are.
    """
    seconds = {part: getattr(breakdown, part) for part in PARTS}
    total = sum(seconds.values())
    if total <= 0:
        return {}
    shown = [part for part in PARTS if seconds[part] >= LEAST_SHARE_SHOWN * total or part in always]
    exact = {part: 100 * seconds[part] / total for part in shown}
    exact["other"] = 100 * sum(value for part, value in seconds.items() if part not in shown) / total
    whole = {part: int(share) for part, share in exact.items()}
    by_remainder = sorted(exact, key=lambda part: whole[part] - exact[part])
    for part in by_remainder[: 100 - sum(whole.values())]:
        whole[part] += 1
    return whole


def breakdown_line(plan: Plan, lang: Language) -> str:
    """`step time: compute 62 | EP 6 (93 % hidden) | imbalance 6 | ... other 3 %`."""
    experts = {"exposed_ep_s"} if plan.strategy.ep > 1 else set()
    parts = []
    for part, share in percentages(plan.breakdown, experts).items():
        text, hidden = f"{part_name(lang, part)} {share}", round(100 * plan.hidden.ep_share_step)
        parts.append(bracketed(lang, text, report_text(lang, "hidden", share=hidden)) if part in experts else text)
    return titled(lang, report_text(lang, "step_time"), " | ".join(parts) + " %")


def losses(plan: Plan, lang: Language) -> list[str]:
    """The largest losses of a step with what MFU gains without each: `recompute 15.1 s (+5.8 MFU points)`."""
    texts = []
    for loss in plan.headroom[:MOST_LOSSES]:
        name = report_text(lang, "below_peak") if loss.part == "compute_s" else part_name(lang, loss.part)
        gain = report_text(lang, "mfu_points", points=f"{loss.mfu_points:+.1f}")
        texts.append(bracketed(lang, f"{name} {seconds(loss.seconds)} s", gain))
    return texts


def headroom_line(plan: Plan, lang: Language) -> str | None:
    """The largest losses of a step, and MFU without them all; None where nothing is known of any."""
    if not plan.headroom:
        return None
    without = report_text(lang, "mfu_without", mfu=percent(plan.headroom[:MOST_LOSSES][-1].mfu_up_to_here))
    losses_text = report_text(lang, "comma").join(losses(plan, lang))
    return titled(lang, report_text(lang, "headroom"), losses_text + report_text(lang, "semicolon") + without)
