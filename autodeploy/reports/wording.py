"""Numbers, strategies, labels of plans and of their parts as text."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from typing import TYPE_CHECKING

from autodeploy.messages import Language, Message, Section, in_language, section_texts, text_of
from autodeploy.specs.strategy import ChoiceKey
from cost_models.schedule import SCHEDULES, schedule
from hardware_profiles.loader import list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autodeploy.specs.planset import NearestChange, Plan
    from autodeploy.specs.strategy import Recompute, Strategy


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
    """Label of a plan in a picture: its rank, or what it is compared with, and its layout."""
    return f"{short_label(plan, lang)} · {degrees(plan.strategy)}"


def short_label(plan: Plan, lang: Language) -> str:
    """Its rank, or what it is compared with."""
    return reference_name(plan.label, lang) if is_reference(plan) else f"{plan.rank}"


def is_reference(plan: Plan) -> bool:
    """Whether the plan is shown only for comparison: it is labelled, such as "public recipe"."""
    return plan.label is not None


# Texts of reports, checks and commands in English and Chinese, and names of what they show.
report_text = Section("report")
check_text = Section("check")
command_text = Section("command")
part_name = Section("part")
memory_name = Section("figure.memory")
_field = Section("field")
_reference = Section("reference")
ACRONYMS = frozenset({"tp", "pp", "vpp", "dp", "cp", "ep", "etp", "fsdp", "mtp", "mla"})
_WITH_DETAIL = frozenset({"recompute", "micro_batch_size", "moe_dispatcher", "schedule"})


def reference_name(label: str | None, lang: Language) -> str:
    """A plan for comparison by its label; a label that is no known one stays."""
    key = (label or "the usual starting point").replace(" ", "_")
    return _reference(lang, key) if key in _reference else str(label)


def titled(lang: Language, name: str, text: str) -> str:
    """`name: text`."""
    return text_of(lang, "common.place", place=name, message=text)


def bracketed(lang: Language, text: str, remark: str) -> str:
    """`text (remark)`."""
    return text_of(lang, "common.text_and_numbers", text=text, numbers=remark)


def valued(lang: Language, name: str, value: object) -> str:
    """`name value` of a label: `micro batch 2`."""
    return f"{report_text(lang, name)} {value}"


def field_name(lang: Language, field: str) -> str:
    """A field of a comparison in words; one without words keeps its name."""
    if field in ACRONYMS:
        return field.upper()
    field = field.removesuffix(".value").removesuffix(".name")
    return _field(lang, field) if field in _field else field.replace("_per_", "/").replace("_", " ")


def change_name(lang: Language, name: str) -> str:
    """A single change such as `recompute:none`, `tp:4` or `schedule:interleaved vpp:4` in words; a feature by name."""
    kind, _, detail = name.partition(":")
    if detail == "off":
        return check_text(lang, "switched_off", name=remedy_name(lang, kind))
    return remedy_name(lang, name.replace("vpp:", "VPP ")) if kind in check_text or kind in ACRONYMS else name


def remedy_name(lang: Language, name: str) -> str:
    """A remedy such as `recompute:norm` or `micro_batch_size:1` in words."""
    kind, _, detail = name.partition(":")
    if kind in ACRONYMS:
        return f"{kind.upper()} {detail}"
    if name == "recompute:none":
        return report_text(lang, "nothing_recomputed")
    text = check_text(lang, "recompute_full_all" if name == "recompute_full:all" else kind, detail=detail)
    return f"{text} {detail}" if kind in _WITH_DETAIL else text


_CONVENTION = re.compile(r"causal, ([\d.]+) TF/(card|die)")
_RECORD = re.compile(r"([\w.\-+]+(?: [\w.\-+]+)?) on ([\d,]+) ([\w\-]+)(?: \((\w+)\))?")


def convention_words(text: str, lang: Language) -> str:
    """Convention of an MFU in words: `causal, 353.9 TF/card`."""
    found = _CONVENTION.fullmatch(text)
    if found is None:
        return text
    return report_text(lang, "mfu_convention", peak=found[1], per=report_text(lang, f"per_{found[2]}"))


def with_records(text: str, lang: Language) -> str:
    """The text with names of runs, `Mixtral-8x7B on 64 910B2 (ID)`, in the order of the language."""

    def said(found: re.Match[str]) -> str:
        values = {"model": found[1], "cards": found[2], "chip": found[3]}
        name = report_text(lang, "record", **values)
        return bracketed(lang, name, found[4]) if found[4] else name

    return text if lang == "en" else _RECORD.sub(said, text)


DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp")


def system_title(profile: str) -> str:
    """Common name of the system of a profile; one's own file has its path."""
    return load_profile(profile).title if profile in list_profiles() else profile


def seconds(value: float) -> str:
    """Seconds with three significant digits at least: 61.2, 3.45, 0.123."""
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def percent(share: float, digits: int = 1) -> str:
    """A share as percent, without the sign: 0.3 -> 30.0."""
    return f"{100 * share:.{digits}f}"


def signed_percent(share: float | None) -> str:
    """A change or an error with its signs: `+3.1 %`; empty for None."""
    return "" if share is None else f"{100 * share:+.1f} %"


def chance(probability: float) -> str:
    """A probability as whole percents, with the sign; only what is certain reads as such: `97 %`, `> 99 %`."""
    if 0.995 <= probability < 1.0:
        return "> 99 %"
    return "< 1 %" if 0.0 < probability < 0.005 else f"{100 * probability:.0f} %"


def quantity(value: float) -> str:
    """A large number in short: 14.8T, 1.2M, 350k, 812."""
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            scaled = value / size
            return f"{scaled:.1f}".removesuffix(".0") + unit if scaled < 100 else f"{scaled:,.0f}{unit}"
    return f"{value:,.0f}"


def degrees(strategy: Strategy, *, with_dp: bool = True) -> str:
    """The parallel degrees, such as `TP2 PP8 VPP4 EP32 DP48`; VPP, CP, EP and ETP of 1 are left out."""
    return short_degrees({name: getattr(strategy, name) for name in DEGREES if with_dp or name != "dp"})


def short_degrees(named: Mapping[str, int | None]) -> str:
    """As `degrees`, of degrees by their names in a strategy; one that is not known is left out."""
    named_degrees = [(name.upper(), value) for name in DEGREES if (value := named.get(name)) is not None]
    return " ".join(f"{name}{value}" for name, value in named_degrees if value > 1 or name in {"TP", "PP", "DP"})


def schedule_title(name: str, lang: Language) -> str:
    """Common name of a schedule; an unknown one keeps its name."""
    return schedule(name).title_in(lang) if name in SCHEDULES else name


def schedule_cell(strategy: Strategy, lang: Language) -> str:
    """The schedule as a table shows it, with full recompute, which changes a plan's character."""
    full = ", " + report_text(lang, "full_recompute") if strategy.recompute.granularity == "full" else ""
    return schedule_title(strategy.schedule, lang) + full


def recompute_names(recompute: Recompute) -> list[str]:
    """Names of all that is recomputed anywhere in the model, in the order of the vocabulary."""
    if recompute.granularity == "none":
        return []
    if recompute.granularity == "full":
        layers = recompute.num_layers
        return ["full" if layers is None else f"full ({layers} layers a stage)"]
    return list(dict.fromkeys([*recompute.modules, *_anywhere(recompute.per_stage)]))


def swap_names(strategy: Strategy) -> list[str]:
    """Names of all that is swapped to the host anywhere in the model."""
    optimizer = ["optimizer"] if strategy.swap_optimizer else []
    return list(dict.fromkeys([*strategy.swap, *_anywhere(strategy.swap_per_stage), *optimizer]))


def _anywhere(per_stage: Sequence[Mapping[str, int]] | None) -> list[str]:
    """Modules of any stage; of which class of layers (`activation@moe`) is the stage's own table to tell."""
    return [ChoiceKey.of(name).name for stage in per_stage or () for name, layers in stage.items() if layers > 0]


def choices(strategy: Strategy, lang: Language) -> str:
    """Schedule, micro batch and memory choices in words."""
    return report_text(lang, "comma").join(choice_parts(strategy, lang))


def choice_parts(strategy: Strategy, lang: Language) -> list[str]:
    """The same one by one, the schedule first."""
    recomputed, swapped = recompute_names(strategy.recompute), swap_names(strategy)
    parts = [schedule_title(strategy.schedule, lang), valued(lang, "micro_batch_size", strategy.micro_batch_size)]
    parts.append(
        valued(lang, "recompute", "+".join(recomputed)) if recomputed else report_text(lang, "nothing_recomputed")
    )
    if swapped:
        parts.append(valued(lang, "swap", "+".join(swapped)))
    if strategy.reuse_fp32_param:
        parts.append("reuse_fp32_param")
    if "virtual_optimizer" in strategy.features:
        parts.append("virtual_optimizer")
    return parts


def excess_words(plan: Plan, lang: Language) -> str:
    """GiB by which a plan exceeds its memory, in a step or before the first; with which samples it does not."""
    if plan.fits_to_tokens is not None:
        needs = {"needed": f"{plan.highest_gib:.1f}", "limit": f"{plan.memory_limit_gib:.1f}"}
        return report_text(lang, "fits_to_tokens", tokens=f"{plan.fits_to_tokens:,}", **needs)
    key = "may_not_fit" if plan.may_fit else "does_not_fit"
    return report_text(lang, key, excess=f"{plan.highest_gib - plan.memory_limit_gib:.1f}")


def peak_words(plan: Plan, lang: Language) -> str:
    """Peak and limit of memory [GiB], and the chance to fit where it is known."""
    values = {"peak": f"{plan.peak_memory_gib:.1f}", "limit": f"{plan.memory_limit_gib:.1f}"}
    if plan.p_fits is None:
        return report_text(lang, "peak_of_limit", **values)
    return report_text(lang, "fits_with_chance", **values, chance=chance(plan.p_fits))


def change_lines(changes: Iterable[NearestChange], lang: Language) -> list[str]:
    """The nearest strategies that pass: what changes, and to what effect."""
    return [in_language(Message("common.place", place=near.change, message=near.effect), lang) for near in changes]


def fullest_stage(plan: Plan) -> int:
    """The stage with the highest peak; 0 of a plan without stages."""
    return max(range(len(plan.stages)), key=lambda stage: plan.stages[stage].total_gib, default=0)


def width(text: str) -> int:
    """Columns of a terminal: East Asian wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """The text filled with spaces to that many columns."""
    space = " " * max(0, columns - width(text))
    return space + text if right else text + space


def wrap(text: str, columns: int = 100, indent: str = "", hanging: str = "") -> list[str]:
    """Lines of at most `columns`. Words stay whole, a `%` stays with its number; Chinese breaks between signs."""
    lines, line = [], indent
    for piece in _PIECES.findall(text):
        if line.strip() and width(line + piece) > columns:
            lines.append(line)
            line = indent + hanging
        line += piece if line.strip() else piece.lstrip()
    return [*lines, line]


_WIDE = "\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef"
# No line begins with a sign that closes, and none ends with one that opens.
_PIECES = re.compile(rf" *（*(?:[{_WIDE}]|[^ {_WIDE}]+(?: %[^ {_WIDE}]*)?)[，：；、。）]*")
