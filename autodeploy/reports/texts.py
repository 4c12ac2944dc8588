"""Texts of reports, checks and commands in English and Chinese, and names of what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Section, text_of

if TYPE_CHECKING:
    from autodeploy.messages import Language

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
