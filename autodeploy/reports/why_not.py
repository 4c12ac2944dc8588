"""What an answer of why-not says, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import in_language
from autodeploy.reports.best_plan import fits_words
from autodeploy.reports.texts import report_text
from autodeploy.reports.wording import choices, degrees

if TYPE_CHECKING:
    from autodeploy.messages import Language
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
