"""Requests of the network as documents of the product, and the schemas that state them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema

from autodeploy.costs.inputs.build_context import profile_of
from autodeploy.costs.training_run.checkpoints import Launched, checkpoint_change
from autodeploy.kit.errors import AutoDeployError, FieldError, NotFoundError, SpecError
from autodeploy.messages import Message
from autodeploy.specs.field_errors import did_you_mean, field_errors
from autodeploy.specs.measured_run import MeasuredRun
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.planset import Plan, PlanSet
from autodeploy.specs.presets import preset_names
from autodeploy.specs.reading import RECOMPUTE_WORDS, card_count, read_spec_document
from autodeploy.specs.record import Record
from autodeploy.specs.spec import Spec, spec_of
from autodeploy.specs.strategy import Strategy
from hardware_profiles import ProfileError, list_profiles, load_profile, nearest_profiles, no_profile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pydantic import BaseModel

    from autodeploy.formats.common.import_result import ImportResult
    from autodeploy.search.planner import Planner
    from autodeploy.specs.plan_details import Comparison


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

    Raises NotFoundError when there is none of that name.
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
        amount = r"^[1-9][0-9]{0,2}(\.[0-9]{1,3})?[kKM]? tokens$"
        tokens = {"type": "string", "pattern": amount, "description": "or tokens of a step", "examples": ["4M tokens"]}
        batch = {"description": "sequences in a global batch", "anyOf": [number, ref("BatchSize"), tokens]}
        definitions["TrainingSpec"]["properties"]["global_batch_size"] = batch
    if "Strategy" in definitions:
        word = {"enum": list(RECOMPUTE_WORDS), "description": "selective: attention's core"}
        definitions["Strategy"]["properties"]["recompute"] = {"anyOf": [word, ref("Recompute")]}
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


# Paths in a spec name files of whoever wrote it; over the network they would name files of the server.
FILE_FIELDS = (("training", "expert_load_file"),)
NO_FILE = Message("services.no_file_here")
NO_FILE_HINT = Message("services.command_line_reads_files")


def read_network_spec(document: Any, planner: Planner) -> Spec:
    """The validated spec of a request's body, which can be planned with.

    Raises SpecError with every bad field: JSON pointer, message and hint.
    """
    spec = read_spec(document)
    with placed_in_spec():
        if spec.training.rl is None:  # else whoever is asked says whether it can answer
            planner.prepare(spec)
    return spec


@contextmanager
def placed_in_spec() -> Iterator[None]:
    """Fault of a profile, at its place in the spec."""
    try:
        yield
    except ProfileError as error:
        errors = tuple(replace(p, path="/cluster" + p.path) for p in error.problems)
        raise SpecError(errors=errors) from error


def read_spec(document: Any) -> Spec:
    """The validated spec of a request's body; whether it can be planned with is another question.

    Raises SpecError with every bad field: JSON pointer, message and hint.
    """
    errors = [*_profile_errors(document), *_file_errors(document)]
    try:
        spec = read_spec_document(document)
        if not errors:
            return spec
    except SpecError as error:
        refused_paths = {e.path for e in errors}
        errors = [*(e for e in error.errors if e.path not in refused_paths), *errors]
    raise SpecError(errors=tuple(sorted(errors, key=lambda e: e.path)))


def refuse_files(spec: Spec) -> None:
    """A queued search may run on another machine, so it names no file of this one.

    Raises SpecError with the pointer of each field that names a file.
    """
    errors = [FieldError(f"/{s}/{k}", NO_FILE, NO_FILE_HINT) for s, k in FILE_FIELDS if getattr(getattr(spec, s), k)]
    if spec.cluster.profile not in list_profiles():
        errors.append(_unknown_profile(spec.cluster.profile))
    if errors:
        raise SpecError(errors=tuple(errors))


def _section(document: Any, name: str) -> Mapping[str, Any]:
    section = document.get(name) if isinstance(document, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def _profile_errors(document: Any) -> list[FieldError]:
    """Only profiles that come with the product: any other name would be looked for among the server's files."""
    cluster = _section(document, "cluster")
    name, overrides = cluster.get("profile"), cluster.get("overrides")
    if not isinstance(name, str):
        return []
    if name not in list_profiles():
        return [_unknown_profile(name)]
    if isinstance(overrides, Mapping):
        try:
            load_profile(name, overrides)
        except ProfileError as error:
            return [replace(p, path="/cluster/overrides" + p.path) for p in error.problems]
    return []


def refuse_profile(name: object) -> None:
    """Raises SpecError for the name of a profile that does not come with the product: it would be read as a path."""
    if isinstance(name, str) and name not in list_profiles():
        raise SpecError(errors=(_unknown_profile(name),))


def _unknown_profile(name: str) -> FieldError:
    return FieldError(
        "/cluster/profile", no_profile(name), did_you_mean(name[:100], nearest_profiles(name) or list_profiles())
    )


def _file_errors(document: Any) -> list[FieldError]:
    return [
        FieldError(f"/{section}/{key}", NO_FILE, NO_FILE_HINT)
        for section, key in FILE_FIELDS
        if _section(document, section).get(key) is not None
    ]


def with_checkpoints(comparison: Comparison, pairs: Sequence[tuple[PlanSet, Plan]]) -> Comparison:
    """The comparison with what a checkpoint of the first plan is to each other, where that can be said."""
    launched = [_launched(plan_set, plan) for plan_set, plan in pairs]
    first, others = launched[0], launched[1:]
    changes = [checkpoint_change(first, other) for other in others if first is not None and other is not None]
    return comparison.model_copy(update={"checkpoints": tuple(changes)})


def _launched(plan_set: PlanSet, plan: Plan) -> Launched | None:
    """None where a spec is of post-training, or its profile is not there any more."""
    try:
        spec = spec_of(plan_set.search)
        return None if spec.training.rl is not None else Launched(spec, plan, profile_of(spec.cluster).vendor)
    except (ValidationError, AutoDeployError):
        return None


def best_of(document: dict[str, Any], path: str = "/plans") -> tuple[PlanSet, Plan]:
    """A PlanSet and its best plan.

    Raises SpecError when it is no PlanSet, or has no plan.
    """
    extra = {"progress", "cached", "cancel_requested", "tags", "note", "note_by", "author", "team", "stale"}
    try:
        plan_set = PlanSet.model_validate({name: value for name, value in document.items() if name not in extra})
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix=path, model=PlanSet)) from error
    if not plan_set.plans:
        raise SpecError(
            Message("services.planset_has_no_plan"), path=path, hint=Message("services.name_search_with_plan")
        )
    return plan_set, plan_set.plans[0]


# A file that somebody pasted into the page, with the fields beside it, becomes a spec.
# What a field beside a pasted text can say.
FIELD_HINTS = {
    "/cluster/profile": Message("api.choose_cluster_beside_text"),
    "/cluster/num_npus": Message("api.give_card_count"),
}


def pasted_document(text: str, beside: Mapping[str, str]) -> tuple[dict[str, Any], ImportResult]:
    """The spec in a pasted file, and what was read.

    beside : `filename`; `cluster`, `device` and `num_npus`, which the file's own give way to; and `seq_length`,
        `global_batch_size` and `tokens`, which hold where it has none.

    Raises SpecError with line and column, or with what is missing.
    """
    # Every format: a tenth of a second, for files alone.
    from autodeploy.formats.import_document import import_document

    cluster, cards = beside.get("cluster", "").strip(), beside.get("num_npus", "").strip()
    imported = import_document(text, beside.get("filename", "").strip()[:200] or None)
    refuse_unstorable(dict(imported.document))
    own = imported.document.get("cluster")
    profile = cluster or (own.get("profile") if isinstance(own, dict) else None)
    refuse_profile(profile)
    count = card_count(cards, profile) if cards else None
    if cards and count is None:
        raise SpecError(Message("api.bad_card_count", value=repr(cards[:40])), path="/cluster/num_npus")
    try:
        document = imported.spec_document(cluster or None, beside.get("device", "").strip() or None, count)
    except SpecError as error:
        raise SpecError(errors=tuple(map(_in_words_of_the_page, error.errors))) from error
    training = dict(document.get("training") or {})
    for name in ("seq_length", "global_batch_size", "tokens"):
        given = beside.get(name, "").strip()
        if name not in training and given:
            training[name] = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else given
    document.pop("strategy", None)
    return document | {"training": training}, imported


def _in_words_of_the_page(error: FieldError) -> FieldError:
    """A complaint about what stands in a field beside the text, where the command line would name its options."""
    hint = FIELD_HINTS.get(error.path) if "--" in error.hint else None
    return error if hint is None else replace(error, hint=hint)


def refuse_unstorable(document: Any) -> None:
    """Text that no database keeps: NUL characters and halves of surrogate pairs."""
    text = json.dumps(document, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecError(Message("api.unstorable_text")) from error
    if "\\u0000" in text:
        raise SpecError(Message("api.unstorable_text"))
