"""Names of what the pictures show, in English and Chinese."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from autodeploy.messages import Language, section_texts
from autodeploy.reports.wording import degrees, reference_name

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan

memory_names = partial(section_texts, section="figure.memory")
part_names = partial(section_texts, section="part")


def picture_words(lang: Language) -> dict[str, str]:
    """Titles and labels of pictures."""
    return section_texts(lang, "label") | section_texts(lang, "figure.word")


def phase_name(name: str, lang: Language) -> str:
    """A phase of a step of reinforcement learning; two of them are parts of the step as well."""
    parts = part_names(lang)
    return parts.get(name) or parts.get(f"{name}_s", name)


def plan_label(plan: Plan, lang: Language) -> str:
    """How a picture names a plan: its rank, or what it is compared with, and its layout."""
    return f"{short_label(plan, lang)} · {degrees(plan.strategy)}"


def short_label(plan: Plan, lang: Language) -> str:
    """Its rank, or what it is compared with."""
    return reference_name(plan.label, lang) if is_reference(plan) else f"{plan.rank}"


def is_reference(plan: Plan) -> bool:
    """Whether the plan is shown only for comparison: it is labelled, such as "public recipe"."""
    return plan.label is not None
