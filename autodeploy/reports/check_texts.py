"""Texts of the reports of a check and of a comparison, in English and Chinese."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.messages import Section

if TYPE_CHECKING:
    from autodeploy.messages import Language

tell = Section("check")
_field = Section("field")
_DEGREES = frozenset({"tp", "pp", "vpp", "dp", "cp", "ep", "etp", "fsdp"})


def field_name(lang: Language, field: str) -> str:
    """A field of a comparison in words; one without words keeps its name."""
    if field in _DEGREES:
        return field.upper()
    return _field(lang, field) if field in _field else field.replace("_", " ")


def change_name(lang: Language, name: str) -> str:
    """A single change such as `recompute:none`, `tp:4` or `schedule:interleaved vpp:4` in words; a feature by name."""
    kind, _, detail = name.partition(":")
    if name == "recompute:none":
        return tell(lang, "recompute_none")
    if kind in {"tp", "pp", "cp", "ep", "etp"}:
        return tell(lang, "degree", axis=kind.upper(), detail=detail)
    if kind == "schedule":
        return tell(lang, kind, detail=detail.replace("vpp:", "VPP "))
    if detail == "off":
        return tell(lang, "switched_off", name=remedy_name(lang, kind))
    return remedy_name(lang, name) if kind in tell else name


def remedy_name(lang: Language, name: str) -> str:
    """A remedy such as `recompute:norm` or `micro_batch_size:1` in words."""
    kind, _, detail = name.partition(":")
    if name == "recompute_full:all":
        kind = "recompute_full_all"
    return tell(lang, kind, detail=detail)
