"""Where a step's time goes, in whole percents that add up to 100."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.reports.texts import part_name, report_text
from autodeploy.specs.planset import PARTS

if TYPE_CHECKING:
    from autodeploy.messages import Language
    from autodeploy.specs.planset import Breakdown, Plan

# In the order of a reader's questions; what stays below 1 % and is not among the first is folded into "other".
ALWAYS_SHOWN = (
    "compute_s",
    "imbalance_s",
    "exposed_ep_s",
    "exposed_tp_s",
    "pipeline_bubble_s",
    "recompute_s",
    "host_bound_s",
)
SHOWN_WHEN_LARGE = (
    "exposed_swap_s",
    "exposed_cp_s",
    "exposed_dp_s",
    "exposed_pp_s",
    "optimizer_s",
    "generation_s",
    "hand_over_s",
)


def percentages(breakdown: Breakdown) -> dict[str, int]:
    """Whole percents by part of the step, largest remainders rounded up so that the sum is 100."""
    seconds = {part: getattr(breakdown, part) for part in PARTS}
    total = sum(seconds.values())
    if total <= 0:
        return {}
    shown = [*ALWAYS_SHOWN, *(part for part in SHOWN_WHEN_LARGE if seconds[part] >= 0.01 * total)]
    exact = {part: 100 * seconds[part] / total for part in shown}
    exact["other"] = 100 * sum(value for part, value in seconds.items() if part not in shown) / total
    whole = {part: int(share) for part, share in exact.items()}
    by_remainder = sorted(exact, key=lambda part: whole[part] - exact[part])
    for part in by_remainder[: 100 - sum(whole.values())]:
        whole[part] += 1
    return whole


def breakdown_line(plan: Plan, lang: Language) -> str:
    """`compute 62 | imbalance 6 | EP 6 (93 % hidden) | ... other 3 %`; parts that don't occur are left out."""
    parts = []
    for part, share in percentages(plan.breakdown).items():
        occurs = part == "other" or getattr(plan.breakdown, part) > 0
        if not occurs and not (part == "exposed_ep_s" and plan.strategy.ep > 1):
            continue
        text = f"{part_name(lang, part)} {share}"
        if part == "exposed_ep_s" and plan.strategy.ep > 1:
            text += f" ({report_text(lang, 'hidden', share=round(100 * plan.hidden.ep_share_step))})"
        parts.append(text)
    return report_text(lang, "a_step") + " | ".join(parts) + " %"
