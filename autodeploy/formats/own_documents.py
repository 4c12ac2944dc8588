"""Specs and PlanSets as they are, and Hugging Face configurations as the model of a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.import_result import ImportResult
from autodeploy.kit.errors import SpecError
from autodeploy.specs.diagnostics import DiagnosticsLog
from autodeploy.specs.hf_config import read_hf_config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.source import Source
    from autodeploy.specs.diagnostics import Diagnostics


def is_plan_set(source: Source) -> bool:
    """Whether a document is what a search found."""
    return {"search", "plans"} <= source.document.keys()


def read_plan_set(source: Source) -> ImportResult:
    """The spec of a PlanSet, with the strategy of its first plan."""
    from pydantic import ValidationError

    from autodeploy.specs.field_errors import field_errors
    from autodeploy.specs.planset import PlanSet

    try:
        plan_set = PlanSet.model_validate(source.document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, model=PlanSet)) from error
    spec = dict(plan_set.search.spec)
    plan = plan_set.plans[0] if plan_set.plans else None
    if plan is not None:
        spec["strategy"] = plan.strategy.model_dump(mode="json")
    return ImportResult("plan-set", spec, _all_taken(spec), plan_id=plan.plan_id if plan else None)


def is_hf_config(source: Source) -> bool:
    """Whether a document is the configuration of a model at Hugging Face."""
    keys = source.document.keys()
    return "model" not in keys and not keys.isdisjoint({"architectures", "model_type", "hidden_size"})


def hf_model(source: Source) -> ImportResult:
    """The model of a spec, and nothing else of it."""
    model, diagnostics = read_hf_config(source.document, source.name)
    return ImportResult("hf-config", {"model": model.model_dump(mode="json", exclude_unset=True)}, diagnostics)


def is_spec(source: Source) -> bool:
    """Whether more keys of a document are a spec's than are none: these are slips."""
    from autodeploy.specs.spec import Spec

    own = source.document.keys() & Spec.model_fields.keys()
    return len(own) > len(source.document.keys() - own)


def read_spec(source: Source) -> ImportResult:
    """The document as it is."""
    return ImportResult("spec", source.document, _all_taken(source.document), base_dir=source.base_dir)


def _all_taken(document: Mapping[str, Any]) -> Diagnostics:
    log = DiagnosticsLog()
    for key, value in document.items():
        log.take(f"/{key}", f"/{key}", value)
    return log.finish()
