"""Formats by name. Modules are imported when first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from autodeploy.errors import SpecError
from autodeploy.specs.validation import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.exporters.artefact import Artefact
    from autodeploy.specs.planset import Plan, PlanSet

# Name -> module with a function `export(plan_set, plan) -> Artefact`.
FORMATS: dict[str, str] = {
    "mindspeed-llm": "autodeploy.exporters.mindspeed_llm",
    "megatron": "autodeploy.exporters.megatron",
    "json": "autodeploy.exporters.json_document",
    "csv": "autodeploy.exporters.csv_table",
    "markdown": "autodeploy.exporters.markdown_report",
}


def export(plan_set: PlanSet, plan: Plan, to: str) -> Artefact:
    """The plan in the format of that name.

    Raises
    ------
    SpecError
        when there is no such format; the hint names close ones.
    """
    if to not in FORMATS:
        raise SpecError(f"unknown format {to[:100]!r}", path="/to", hint=did_you_mean(to, FORMATS))
    exporter = cast("Callable[[PlanSet, Plan], Artefact]", import_module(FORMATS[to]).export)
    return exporter(plan_set, plan)
