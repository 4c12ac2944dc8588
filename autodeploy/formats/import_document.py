"""One entry for every file that AutoDeploy understands: it looks at the content, then at the name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.checkout import launch_text
from autodeploy.formats.common.import_result import UNNAMED, ImportResult
from autodeploy.formats.common.launch_script import refuse_other_configuration, refuse_program, refuse_python
from autodeploy.formats.fsdp2.reader import import_fsdp2, import_fsdp2_script, is_fsdp2, is_fsdp2_script
from autodeploy.formats.megatron.keyed_launch import is_keyed, keyed_launch, program_of, with_experiment
from autodeploy.formats.megatron.script import import_launch_script, imported_launch, read_megatron_launch
from autodeploy.formats.mindformers.configuration import import_mindformers, is_mindformers
from autodeploy.formats.mindspeed_rl import import_mindspeed_rl, is_mindspeed_rl
from autodeploy.formats.torchtitan.reader import import_torchtitan, is_toml, is_torchtitan, load_toml
from autodeploy.formats.verl.reader import import_verl, is_verl
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.hf_config import read_hf_config
from autodeploy.specs.text_files import MAX_BYTES, MAX_LAUNCH_CHARACTERS, load_json, load_yaml, refuse_long

if TYPE_CHECKING:
    from autodeploy.formats.common.launch_script import LaunchScript
    from autodeploy.specs.diagnostics import Diagnostics

SCRIPT_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
SCRIPT_SIGNS = ("#!/", "torchrun", "actor_rollout_ref.", "--tensor-model-parallel-size", "--num-layers ")

_BOOLEAN_WORD = re.compile(r"\b(?:yes|no|on|off)\b", re.IGNORECASE)


def import_file(
    path: Path,
    *,
    variables: Mapping[str, str] | None = None,
    name: str | None = None,
    release: str | None = None,
    vendor: str | None = None,
) -> ImportResult:
    """The spec in a file; files that it names are looked for next to it. As `import_document` and `launch_text`."""
    launch = launch_text(path, release, vendor)
    if path.name == "config.json" and name is None:
        name = path.resolve().parent.name or None
    try:
        imported = import_document(launch.text, path.name, variables=variables, name=name, base_dir=path.parent)
        return imported.for_release(release, launch.doubt)
    except SpecError as error:
        if any(field.path for field in error.errors):
            raise
        raise type(error)(Message("common.place", place=path.name, message=str(error)), hint=error.hint) from error


def import_document(
    text: str,
    filename: str | None = None,
    *,
    variables: Mapping[str, str] | None = None,
    name: str | None = None,
    base_dir: Path | None = None,
) -> ImportResult:
    """The spec in a text: an own spec or PlanSet, a Hugging Face config.json, a launch script or file.

    text : at most 1 MB, of a script or TOML 200,000 characters.
    filename : helps where the content alone doesn't tell, by its suffix.
    variables : variables of a launch script, as its environment would set them.
    name : the model's name where the file has none.
    base_dir : where files are looked for that the text names; absent, it may name none.

    Raises SpecError with line and column, or with every bad field.
    """
    refuse_long(text, MAX_BYTES)
    suffix = Path(filename or "").suffix.lower()
    if suffix == ".py":
        refuse_python(text)
    if is_toml(text, suffix):
        document = load_toml(text)
        if not is_torchtitan(document):
            raise SpecError(Message("importers.not_importable"), hint="[model], [parallelism]")
        return import_torchtitan(document, text, name, base_dir).with_doubts()
    if is_script(text, suffix):
        refuse_long(text, MAX_LAUNCH_CHARACTERS)
        if is_verl(text):
            return import_verl(text, variables, name, base_dir).with_doubts()
        if is_fsdp2_script(text):
            return import_fsdp2_script(text, variables, name, _stem(filename), base_dir).with_doubts()
        return import_launch_script(text, variables, name, _stem(filename), base_dir).with_doubts()
    document = load_json(text, constants=True) if is_json(text, suffix) else load_yaml(text)
    imported = None
    if isinstance(document, Mapping):
        task, task_text, experiment = with_experiment(document, text, base_dir, Path(filename or "").stem)
        refuse_program([program_of(experiment)])
        if is_keyed(task):
            launch = keyed_launch(task, task_text, variables or {}, experiment)
            return imported_launch(launch, task_text, name, _stem(filename)).with_doubts()
        imported = _of_mapping(task, task_text, filename, name, base_dir)
    if imported is None:
        raise SpecError(Message("importers.not_importable"), hint=Message("importers.importable_files"))
    return imported


def read_launch(text: str, variables: Mapping[str, str] | None = None, base_dir: Path | None = None) -> LaunchScript:
    """The launch of a script, or of Megatron's settings as keys, in Megatron's flags. As `import_document`."""
    try:
        document = load_yaml(text)
    except SpecError:
        document = {}
    if isinstance(document, Mapping):
        task, task_text, experiment = with_experiment(document, text, base_dir, "")
        if is_keyed(task):
            return keyed_launch(task, task_text, variables or {}, experiment)
    return read_megatron_launch(text, variables, base_dir=base_dir)[0]


def _stem(filename: str | None) -> str:
    """Name of a model without one: that of its file."""
    return Path(filename or "").stem[:200] or UNNAMED


def is_json(text: str, suffix: str) -> bool:
    """Whether a document is JSON, which a YAML may begin like."""
    return suffix == ".json" or (suffix not in {".yaml", ".yml"} and text.lstrip()[:1] == "{")


def is_script(text: str, suffix: str) -> bool:
    """Whether a text is a launch script, by the suffix of its file or by what stands in it."""
    if suffix.lower() in SCRIPT_SUFFIXES:
        return True
    return suffix.lower() not in {".json", ".yaml", ".yml"} and any(sign in text for sign in SCRIPT_SIGNS)


def _of_mapping(
    document: Mapping[str, Any], text: str, filename: str | None, name: str | None, base_dir: Path | None
) -> ImportResult | None:
    """Kind of a mapping, by its keys; None where nothing tells it."""
    if "search" in document and "plans" in document:
        return _of_plan_set(document)
    if _is_of_framework(document) and _BOOLEAN_WORD.search(text):
        document = load_yaml(text, boolean_words=True)
    if is_mindspeed_rl(document):
        return import_mindspeed_rl(document, text, name, _stem(filename), base_dir).with_doubts()
    if is_fsdp2(document):
        return import_fsdp2(document, text, name, _stem(filename), base_dir).with_doubts()
    refuse_other_configuration(document)
    if is_mindformers(document):
        return import_mindformers(document, text, name, _stem(filename)).with_doubts()
    if "model" not in document and {"architectures", "model_type", "hidden_size"} & document.keys():
        model, diagnostics = read_hf_config(document, name)
        document_of_model = {"model": model.model_dump(mode="json", exclude_unset=True)}
        return ImportResult("hf-config", document_of_model, diagnostics).with_doubts()
    from autodeploy.specs.spec import Spec

    own = document.keys() & Spec.model_fields.keys()  # the others are slips, where they are fewer
    is_spec = len(own) > len(document.keys() - own)
    return ImportResult("spec", document, _all_taken(document), base_dir=base_dir) if is_spec else None


def _is_of_framework(document: Mapping[str, Any]) -> bool:
    return is_mindspeed_rl(document) or is_fsdp2(document) or is_mindformers(document)


def _of_plan_set(document: Mapping[str, Any]) -> ImportResult:
    """The spec of a PlanSet, with the strategy of its first plan."""
    from pydantic import ValidationError

    from autodeploy.specs.field_errors import field_errors
    from autodeploy.specs.planset import PlanSet

    try:
        plan_set = PlanSet.model_validate(document)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, model=PlanSet)) from error
    spec = dict(plan_set.search.spec)
    plan = plan_set.plans[0] if plan_set.plans else None
    if plan is not None:
        spec["strategy"] = plan.strategy.model_dump(mode="json")
    return ImportResult("plan-set", spec, _all_taken(spec), plan_id=plan.plan_id if plan else None)


def _all_taken(document: Mapping[str, Any]) -> Diagnostics:
    from autodeploy.specs.diagnostics import DiagnosticsLog

    log = DiagnosticsLog()
    for key, value in document.items():
        log.take(f"/{key}", f"/{key}", value)
    return log.finish()
