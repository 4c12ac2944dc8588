"""/v1/models and /v1/schemas: what a spec may name."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from api.documents import ModelList, SchemaList
from api.problems import responses
from autodeploy.errors import NotFoundError, SpecError
from autodeploy.services.schemas import json_schema, schema_names
from autodeploy.specs.presets import Preset, list_presets, read_preset

router = APIRouter(prefix="/v1", tags=["catalogue"])

Name = Annotated[str, Path(max_length=100)]


@router.get("/models", operation_id="list_models", summary="Model presets")
def list_models() -> ModelList:
    """Names to write into `model`, with parameter counts in billions."""
    return ModelList(items=list_presets())


@router.get("/models/{name}", operation_id="get_model", summary="One model preset", responses=responses(404, 422))
def get_model(name: Name) -> Preset:
    """Its shape, and the sources of the numbers."""
    try:
        return read_preset(name)
    except SpecError as error:
        raise NotFoundError(str(error), hint=error.hint) from error


@router.get("/schemas", operation_id="list_schemas", summary="Documents that have a JSON Schema")
def list_schemas() -> SchemaList:
    """Names under /v1/schemas/."""
    return SchemaList(items=list(schema_names()))


@router.get("/schemas/{name}", operation_id="get_schema", summary="A JSON Schema", responses=responses(404, 422))
def get_schema(name: Name) -> dict[str, Any]:
    """For editors and code generators: `$schema` in a spec file may name it."""
    return json_schema(name)
