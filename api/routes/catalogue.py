"""/v1/hardware-profiles, /v1/software-stacks, /v1/models and /v1/schemas: what a spec may name."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from api.http.documents import ModelList, ProfileItem, ProfileList, SchemaList, StackList
from api.http.problems import responses
from autodeploy.analysis.intake import json_schema, schema_names
from autodeploy.kit.errors import NotFoundError, SpecError
from autodeploy.specs.field_errors import did_you_mean
from autodeploy.specs.presets import Preset, list_presets, read_preset
from autodeploy.specs.resources import StackDocument, StackItem
from autodeploy.stack.software import shipped_stacks, stack_named
from hardware_profiles import ProfileDocument, list_profiles, load_profile, no_profile

router = APIRouter(prefix="/v1", tags=["catalogue"])

Name = Annotated[str, Path(max_length=100)]


@router.get("/hardware-profiles", operation_id="list_hardware_profiles", summary="Hardware profiles")
def list_hardware_profiles() -> ProfileList:
    """Names to write into `cluster.profile`, and the chip grades of each."""
    documents = [load_profile(name).document for name in list_profiles()]
    return ProfileList(items=[ProfileItem(name=d.name, title=d.title, devices=list(d.devices)) for d in documents])


@router.get(
    "/hardware-profiles/{name}",
    operation_id="get_hardware_profile",
    summary="One hardware profile",
    responses=responses(404, 422),
)
def get_hardware_profile(name: Name) -> ProfileDocument:
    """Every number with its unit, kind and source."""
    if name not in list_profiles():
        raise NotFoundError(no_profile(name), hint=did_you_mean(name, list_profiles()))
    return load_profile(name).document


@router.get("/software-stacks", operation_id="list_software_stacks", summary="Software stacks")
def list_software_stacks() -> StackList:
    """Names to write into `software`."""
    return StackList(items=[StackItem.model_validate(stack) for stack in shipped_stacks().values()])


@router.get(
    "/software-stacks/{name}",
    operation_id="get_software_stack",
    summary="One software stack",
    responses=responses(404, 422),
)
def get_software_stack(name: Name) -> StackDocument:
    """Every fact with what it depends on, its kind and source."""
    try:
        return StackDocument.of(stack_named(name))
    except SpecError as error:
        raise NotFoundError(str(error), hint=error.hint) from error


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
