"""JSON Schemas (2020-12) of the documents, as people write them.

Validators accept more spellings than the types say: a preset's name for a model, a number for a batch, true and false
for a switch. The schemas say so too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic.json_schema import models_json_schema

from autodeploy.kit.errors import NotFoundError
from autodeploy.messages import Message
from autodeploy.specs.field_errors import did_you_mean
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.planset import Plan, PlanSet
from autodeploy.specs.presets import preset_names
from autodeploy.specs.record import Record
from autodeploy.specs.spec import Spec
from autodeploy.specs.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_INPUTS: dict[str, type[BaseModel]] = {
    "spec": Spec,
    "model": ModelSpec,
    "strategy": Strategy,
    "record": Record,
    "run": MeasuredRun,
}
_OUTPUTS: dict[str, type[BaseModel]] = {"planset": PlanSet, "plan": Plan}


def schema_names() -> tuple[str, ...]:
    """The documents that have a schema."""
    return tuple(sorted(_INPUTS | _OUTPUTS))


def json_schema(name: str) -> dict[str, Any]:
    """The schema of that document.

    Raises
    ------
    NotFoundError
        when there is none of that name.
    """
    model = (_INPUTS | _OUTPUTS).get(name)
    if model is None:
        raise NotFoundError(
            Message("field_fault.is_invalid", value=repr(name[:100])),
            hint=did_you_mean(name[:100], schema_names()),
        )
    definitions = schema_definitions(name)
    return {"$schema": DIALECT, **definitions.pop(model.__name__), "$defs": definitions}


def schema_definitions(name: str, ref_template: str = "#/$defs/{model}") -> dict[str, Any]:
    """The schema of a document and of everything in it, by type name."""
    model = (_INPUTS | _OUTPUTS)[name]
    mode: Literal["validation", "serialization"] = "validation" if name in _INPUTS else "serialization"
    _, schema = models_json_schema([(model, mode)], ref_template=ref_template)
    definitions: dict[str, Any] = schema["$defs"]
    if name in _INPUTS:
        _widen(definitions, ref_template)
    return definitions


def input_definitions(models: Iterable[type[BaseModel]], ref_template: str) -> dict[str, Any]:
    """The schema of a spec, of documents that may be sent, and of everything in them, by type name."""
    asked: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (model, "validation") for model in dict.fromkeys([*_INPUTS.values(), *models])
    ]
    _, schema = models_json_schema(asked, ref_template=ref_template)
    definitions: dict[str, Any] = schema["$defs"]
    _widen(definitions, ref_template)
    return definitions


def _widen(definitions: dict[str, Any], ref_template: str) -> None:
    """Says in the schema what the validators accept besides the type."""

    def ref(model: str) -> dict[str, str]:
        return {"$ref": ref_template.format(model=model)}

    if "Spec" in definitions:
        definitions["Spec"]["properties"]["model"] = {
            "anyOf": _model_forms(ref("ModelSpec"), definitions["ModelSpec"]["properties"])
        }
    if "TrainingSpec" in definitions:
        number = {"type": "integer", "minimum": 1, "maximum": 10_000_000, "examples": [15_360]}
        batch = {"description": "sequences in a global batch", "anyOf": [number, ref("BatchSize")]}
        definitions["TrainingSpec"]["properties"]["global_batch_size"] = batch
    if "SearchSpec" in definitions:
        switch = {"anyOf": [{"enum": ["on", "off", "auto"]}, {"type": "boolean"}]}
        definitions["SearchSpec"]["properties"]["features"]["additionalProperties"] = switch


def _model_forms(model: dict[str, str], fields: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "string", "enum": list(preset_names()), "description": "a preset's name", "examples": ["deepseek-v3"]},
        model,
        {
            "type": "object",
            "description": "a preset with changes, in the fields of a model",
            "properties": {"preset": {"type": "string", "enum": list(preset_names())}, **fields},
            "required": ["preset"],
            "additionalProperties": False,
            "examples": [{"preset": "deepseek-v3", "num_hidden_layers": 30}],
        },
        {
            "type": "object",
            "description": "the content of a Hugging Face config.json",
            "properties": {"hf_config": {"type": "object"}, "name": {"type": "string"}},
            "required": ["hf_config"],
            "additionalProperties": False,
        },
    ]
