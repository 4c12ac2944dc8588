"""What an answer of why-not says, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Message, in_language
from autodeploy.reports.plan_report import fits_words
from autodeploy.reports.wording import choices, degrees, report_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.messages import Language
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.what_if import WhyNot


def answer_lines(answer: WhyNot, lang: Language) -> list[str]:
    """What rules the strategy out, how it was completed, what would fit, and what it would cost."""
    message = in_language(answer.message, lang)
    lines = [report_text(lang, "rejected_by", rule=answer.rule, message=message) if answer.rule else message]
    if (plan := answer.completed) is not None:
        layout = degrees(plan.strategy)
        lines.append(report_text(lang, "completed_by", layout=layout, choices=choices(plan.strategy, lang)))
        lines.append(fits_words(plan, lang))
    if answer.fitting is not None:
        peak = f"{answer.fitting.peak_memory_gib:.1f}"
        lines.append(report_text(lang, "fits_with", choices=choices(answer.fitting.strategy, lang), peak=peak))
    if answer.step_time_s is not None:
        compared = [
            report_text(lang, name, pct=f"{pct:+z.1f}")
            for name in ("against_best", "against_fastest")
            if (pct := getattr(answer, f"{name}_pct")) is not None
        ]
        lines.append(report_text(lang, "would_take", step=f"{answer.step_time_s:.4g}") + "".join(compared))
    return lines


# What a rehearsal keeps of its plan, what it changes and can't show, and both predictions.
SHOWN_MS = 0.005  # parts below it are left out


def rehearsal_lines(
    of: Plan,
    rehearsal: Plan,
    changed: Mapping[str, tuple[int, int]],
    layer_s: Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]],
) -> list[str]:
    """One sentence a line, each a message of the catalogue.

    Parameters
    ----------
    changed, layer_s : as `autodeploy.analysis.rehearsal.Rehearsal` has them.
    """
    fewer = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in changed.items())
    lines: list[str] = [
        Message(
            "reports.rehearsal_of_plan_on_of_its_cards",
            plan=of.plan_id,
            here=rehearsal.num_npus_used,
            cards=of.num_npus_used,
        ),
        Message("reports.changed_from_plan_to_here", changes=fewer),
        Message("reports.all_else_of_rank_s_work_is_as"),
        *(Message("reports.predicted", cards=plan.num_npus_used, **_prediction(plan)) for plan in (rehearsal, of)),
    ]
    for kind, (planned, now) in layer_s.items():
        parts = [
            f"{part.removesuffix('_s')} {1e3 * planned[part]:.2f} -> {1e3 * now[part]:.2f} ms"
            for part in planned
            if max(planned[part], now[part]) * 1e3 > SHOWN_MS
        ]
        lines.append(Message("reports.one_layer_and_micro_batch_from_plan_to", kind=kind, parts=", ".join(parts)))
    lines.append(Message("reports.it_does_not_show"))
    return lines


def _prediction(plan: Plan) -> dict[str, str]:
    interval = plan.uncertainty
    return {
        "step": f"{plan.step_time_s:.4g}",
        "low": f"{interval.low_s:.4g}",
        "high": f"{interval.high_s:.4g}",
        "gib": f"{plan.peak_memory_gib:.1f}",
    }
