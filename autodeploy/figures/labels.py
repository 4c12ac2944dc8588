"""Names of what the pictures show, in English and Chinese."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from autodeploy.messages import Language, section_texts
from autodeploy.reports.texts import reference_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.specs.planset import Plan
    from autodeploy.specs.strategy import Strategy

memory_names = partial(section_texts, section="figure.memory")
rl_words = partial(section_texts, section="figure.rl")
part_names = partial(section_texts, section="part")


def picture_words(lang: Language) -> dict[str, str]:
    """Titles and labels of pictures."""
    return section_texts(lang, "label") | section_texts(lang, "figure.word")


def rl_phases(lang: Language) -> dict[str, str]:
    """Phases of a step of reinforcement learning; two of them are parts of the step as well."""
    parts = {name.removesuffix("_s"): text for name, text in part_names(lang).items()}
    return parts | section_texts(lang, "figure.rl_phase")


DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def layout(strategy: Strategy) -> str:
    """Parallel degrees in short form, such as `TP2 PP8 VPP4 EP64 DP48`; VPP, CP, EP, ETP of 1 are left out."""
    return short_degrees({name: getattr(strategy, name) for name in DEGREES})


def short_degrees(degrees: Mapping[str, int | None]) -> str:
    """As `layout`, of degrees by their names in a strategy; one that is not set is 1."""
    values = [(name.upper(), degrees.get(name) or 1) for name in DEGREES]
    return " ".join(f"{name}{value}" for name, value in values if value > 1 or name in {"TP", "PP", "DP"})


def plan_label(plan: Plan, lang: Language) -> str:
    """How a picture names a plan: its rank, or what it is compared with, and its layout."""
    return f"{short_label(plan, lang)} · {layout(plan.strategy)}"


def short_label(plan: Plan, lang: Language) -> str:
    """Its rank, or what it is compared with."""
    return reference_name(plan.label, lang) if is_reference(plan) else f"{plan.rank}"


def is_reference(plan: Plan) -> bool:
    """Whether the plan is shown only for comparison: it is labelled, such as "public recipe"."""
    return plan.label is not None
