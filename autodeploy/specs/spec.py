"""The spec: everything a user says about one planning job, and its reading from stored searches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError, model_validator

from autodeploy.kit.errors import ConflictError, FieldError, SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.messages import Message, recovered
from autodeploy.messages.field_faults import MOST_HINTS, FieldFault
from autodeploy.specs.base import Document
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.diagnostics import Doubts, Unmodelled, changes_the_result
from autodeploy.specs.field_errors import did_you_mean, field_errors
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.presets import load_preset
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.software import SoftwareField, software_faults
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.training import TrainingSpec
from autodeploy.specs.training_run import RunSpec, ramp_error
from autodeploy.stack.features import FEATURES, GROUPS
from autodeploy.stack.frameworks import DEFAULT, FRAMEWORKS, UNRESTRICTED, post_trainers
from autodeploy.stack.releases import framework_for
from cost_models.optimizers import OPTIMIZERS
from hardware_profiles import ProfileError, list_profiles, load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.specs.planset import SearchInfo
    from autodeploy.specs.rl import RlStrategy


# What parts of a spec say of reinforcement learning, held against each other.
AXES_OF = ("fix", "allow", "forbid")
OF_REINFORCEMENT = "training.kind: rl_post_training"


def rl_faults(spec: Spec) -> list[FieldError]:
    """Contradictions of the kind of training with another part of the spec."""
    return list(_of_reinforcement(spec) if spec.training.rl is not None else _of_pre_training(spec))


def _of_pre_training(spec: Spec) -> Iterator[FieldError]:
    target = spec.search.target
    if FRAMEWORKS[target].post_trains:
        others = [name for name, each in FRAMEWORKS.items() if not each.post_trains]
        message = Message("common.it_needs_field", name=OF_REINFORCEMENT)
        yield FieldError("/search/target", message, Message("common.one_of", names=", ".join(others)))
    for field in AXES_OF:
        for axis in getattr(spec.search, field):
            if axis.startswith("rl."):
                yield _needs(f"/search/{field}/{axis}", OF_REINFORCEMENT)
    if spec.search.off_policy:
        yield _needs("/search/off_policy", OF_REINFORCEMENT)
    if spec.strategy is not None and spec.strategy.rl is not None:
        yield _needs("/strategy/rl", OF_REINFORCEMENT)


def _needs(path: str, wanted: str, *instead: str) -> FieldError:
    """Fault of a field that says nothing without another; instead : further ones that would have it."""
    needed = FieldFault.needs(wanted)
    hint = Message("common.leave_it_out_or", instead=", ".join((wanted, *instead))) if instead else needed.hint
    return FieldError(path, needed.message, hint)


def _of_reinforcement(spec: Spec) -> Iterator[FieldError]:
    search, strategy, cards = spec.search, spec.strategy, spec.cluster.num_npus
    if search.target != UNRESTRICTED and not FRAMEWORKS[search.target].post_trains:
        message = Message("specs.no_reinforcement_learning", target=search.target)
        yield FieldError(
            "/search/target", message, Message("common.one_of", names=", ".join((*post_trainers(), UNRESTRICTED)))
        )
    for path, given in (("/run", spec.run), ("/training/tokens", spec.training.tokens)):
        if given is not None:
            message = Message("common.excludes_it", what=OF_REINFORCEMENT)
            yield FieldError(path, message, Message("common.leave_it_out"))
    yield from _pinned(search, cards)
    if strategy is not None and strategy.rl is None:
        message = Message("common.is_required", name="strategy.rl")
        yield FieldError("/strategy/rl", message, "strategy: {rl: {placement: colocated, generation: {tp: 4, ...}}}")
    elif strategy is not None and strategy.rl is not None:
        yield from _cards_remain(strategy.rl, cards)


def _pinned(search: SearchSpec, cards: int | None) -> Iterator[FieldError]:
    """Axes that are pinned to what cannot go together."""
    fixed: dict[str, Any] = {str(axis): value for axis, value in search.fix.items()}
    placement, generating = fixed.get("rl.placement"), fixed.get("rl.generation_npus")
    if fixed.get("rl.staleness") and placement not in (None, "async"):
        yield _needs("/search/fix/rl.staleness", "rl.placement: async")
    if generating is not None and placement == "colocated":
        message = Message("common.excludes_it", what="rl.placement: colocated")
        yield FieldError(
            "/search/fix/rl.generation_npus",
            message,
            Message("common.leave_it_out_or", instead="rl.placement: separate, async"),
        )
    if generating is not None and cards is not None and generating >= cards:
        yield _none_trains("/search/fix/rl.generation_npus", generating, cards)
    if fixed.get("rl.offload", "none") != "none" and placement in ("separate", "async"):
        yield _needs("/search/fix/rl.offload", "rl.placement: colocated", "search.target: verl")
    trainer = FRAMEWORKS[search.target]
    if not trainer.generates_beside and placement in ("separate", "async"):
        message = Message("specs.colocated_only", title=trainer.title)
        yield FieldError("/search/fix/rl.placement", message, "rl.placement: colocated, search.target: verl")


def _cards_remain(strategy: RlStrategy, cards: int | None) -> Iterator[FieldError]:
    generating = strategy.generation_npus
    if generating is not None and cards is not None and generating >= cards:
        yield _none_trains("/strategy/rl/generation_npus", generating, cards)


def _none_trains(path: str, generating: int, cards: int) -> FieldError:
    message = Message("specs.no_trainer_cards", generating=generating, cards=cards)
    return FieldError(path, message, Message("field_fault.less_than", bound=cards))


ModelReader = Callable[[Mapping[str, Any]], ModelSpec]


DOUBTS_OF = ("importers", "specs")
"""Sections whose texts are doubts of specs, which are stored in English."""


class Spec(Document):
    """A request to plan: the model, the cluster, the training, the search and the run of weeks.

    `unmodelled` and `doubts` are told with every plan: what the file that the spec was read from has and no field here
    says.
    """

    model: ModelSpec
    cluster: ClusterSpec
    training: TrainingSpec
    search: SearchSpec = SearchSpec()
    software: SoftwareField = None
    run: RunSpec | None = None
    strategy: Strategy | None = None
    unmodelled: Unmodelled = ()
    doubts: Doubts = ()

    @property
    def to_check(self) -> tuple[str, ...]:
        """Assumptions to check before a number is believed, the weightiest first."""
        doubts = (recovered(doubt, DOUBTS_OF) for doubt in self.doubts)
        return (*map(changes_the_result, self.unmodelled), *doubts)

    @model_validator(mode="before")
    @classmethod
    def _optimizer_switched_on(cls, document: Any) -> Any:
        """Features of a plan that the training's optimizer switches on."""
        if not isinstance(document, Mapping) or not isinstance(training := document.get("training"), Mapping):
            return document
        search, name = document.get("search", {}), training.get("optimizer")
        if name not in [*OPTIMIZERS.keys() & FEATURES.keys()] or not isinstance(search, Mapping):
            return document
        given = search.get("features", {})
        if not isinstance(given, Mapping):
            return document
        return {**document, "search": {**search, "features": {**given, name: "on"}}}

    @model_validator(mode="before")
    @classmethod
    def _target_of_its_kind(cls, document: Any) -> Any:
        """Without a target it is for the first framework that trains so and has a release for the chips."""
        if not isinstance(document, Mapping):
            return document
        training, cluster, search = (document.get(name, {}) for name in ("training", "cluster", "search"))
        if not all(isinstance(each, Mapping) for each in (training, cluster, search)) or "target" in search:
            return document
        usual = post_trainers()[0] if training.get("kind") == "rl_post_training" else DEFAULT
        target = framework_for(usual, vendor_of(cluster.get("profile")))
        return {**document, "search": {**search, "target": target}}


def vendor_of(profile: Any) -> str | None:
    """Vendor of a profile's chips: of one by name, or in a file that a command line or a program names."""
    if not isinstance(profile, str) or not (profile in list_profiles() or profile.endswith((".yaml", ".yml"))):
        return None
    try:
        return load_profile(profile).vendor
    except ProfileError:  # another place says so
        return None


def canonical_json(document: Any) -> str:
    """JSON with sorted keys and no spaces: equal documents give equal text."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def spec_hash(spec: Spec) -> str:
    """SHA-256 of the validated spec, so that spelling and order don't matter."""
    return hashlib.sha256(canonical_json(spec.model_dump(mode="json")).encode()).hexdigest()


def no_strategy() -> SpecError:
    """The refusal of a spec whose strategy is asked for and absent."""
    return SpecError(Message("common.is_required", name="strategy"), path="/strategy", hint="strategy: {tp: 8, pp: 4}")


def parse_spec(document: Any, *, read_hf_model: ModelReader | None = None) -> Spec:
    """Validate a spec.

    Its `model` is a preset's name, an inline model, {preset: name, ...changes}, {hf_config: ...} or a raw Hugging Face
    config.json.

    document : mapping as read from YAML, JSON or a request body.
    read_hf_model : turns an {hf_config: ...} mapping into a model; `importers.spec_file` brings it.

    Raises SpecError with every bad field at once: JSON pointer, message and hint.
    """
    if not isinstance(document, Mapping):
        raise SpecError(Message("specs.mapping_with", keys="model, cluster, training"), path="")
    document = dict(document)
    errors: list[FieldError] = []
    if "model" in document:
        try:
            document["model"] = _resolve_model(document["model"], read_hf_model)
        except SpecError as error:
            errors += [FieldError("/model" + e.path.removeprefix("/model"), e.message, e.hint) for e in error.errors]
    try:
        spec = Spec.model_validate(document)
    except ValidationError as error:
        known_bad_model = bool(errors)
        errors += [e for e in field_errors(error, model=Spec) if not (known_bad_model and e.path.startswith("/model"))]
    errors += _unknown_features(document)
    if not errors:
        errors += _unmodelled_tuning(spec) or _without_a_run(spec)
        errors = errors or _contradicting_phases(spec) or rl_faults(spec)
        errors = errors or software_faults(spec.software, vendor_of(spec.cluster.profile))
    if errors:
        raise SpecError(errors=tuple(errors))
    return _told_of_robust(spec, document)


def _told_of_robust(spec: Spec, document: Mapping[str, Any]) -> Spec:
    """The spec with a doubt where it still says `robust`."""
    search = document.get("search")
    if not isinstance(search, Mapping) or "robust" not in search:
        return spec
    doubt = Message("specs.robust_replaced", risk=spec.search.risk)
    return spec.model_copy(update={"doubts": (*spec.doubts, doubt)})


def _without_a_run(spec: Spec) -> list[FieldError]:
    """The time to the last token is asked for, and there is none."""
    if spec.search.objective != "time_to_train" or spec.training.tokens is not None or (spec.run and spec.run.phases):
        return []
    path, rl = "/search/objective", spec.training.rl is not None
    hint = (
        Message("common.one_of", names="step_time, tokens_per_s_per_npu")
        if rl
        else Message("common.at_least_one_of", names="training.tokens, run.phases")
    )
    return [FieldError(path, Message("common.needs", one="time_to_train", other="training.tokens"), hint)]


def _unmodelled_tuning(spec: Spec) -> list[FieldError]:
    """Tuning of a model for which it is not modelled."""
    found = [
        (each, each.problem(partial(getattr, spec.model), spec.training.adapters[1])) for each in spec.training.tunings
    ]
    return [FieldError(each.path, problem, each.instead) for each, problem in found if problem is not None][:1]


def _contradicting_phases(spec: Spec) -> list[FieldError]:
    """Phases against the training they refer to."""
    if spec.run is None or not spec.run.phases:
        return []
    errors = []
    for number, phase in enumerate(spec.run.phases):
        fault = ramp_error(phase, phase.global_batch_size or spec.training.global_batch_size.value)
        if fault is not None:
            errors.append(FieldError(f"/run/phases/{number}/ramp", fault, "start + n x increment = global_batch_size"))
    total = sum(phase.tokens for phase in spec.run.phases)
    if spec.training.tokens is not None and abs(total - spec.training.tokens) > 1e-6 * total:
        message = Message("specs.phase_tokens_differ", phases=total, tokens=spec.training.tokens)
        errors.append(FieldError("/run/phases", message, Message("specs.leave_out", names="training.tokens")))
    return errors


def _resolve_model(value: Any, read_hf_model: ModelReader | None) -> Any:
    """A preset's name or a reference becomes an inline model."""
    if isinstance(value, str):
        return load_preset(value)
    if isinstance(value, Mapping) and ("architectures" in value or "model_type" in value):
        value = {"hf_config": value}  # a raw config.json
    if isinstance(value, Mapping) and "hf_config" in value:
        if read_hf_model is None:
            raise SpecError(
                Message("specs.no_hf_config"),
                path="/hf_config",
                hint=Message("importers.write_model_inline"),
            )
        return read_hf_model(value)
    if isinstance(value, Mapping) and "preset" in value:
        changes = {k: v for k, v in value.items() if k != "preset"}
        preset = load_preset(str(value["preset"])).model_dump(exclude_unset=True)
        if isinstance(changes.get("recipe"), Mapping):
            changes["recipe"] = {**preset.get("recipe", {}), **changes["recipe"]}
        return preset | changes
    return value


def _unknown_features(document: Mapping[str, Any]) -> list[FieldError]:
    """Misspelt features, found whether or not the rest of the document is valid."""
    search = document.get("search")
    asked = search.get("features") if isinstance(search, Mapping) else None
    names = [*FEATURES, *GROUPS]
    unknown = [name for name in (asked if isinstance(asked, Mapping) else ()) if name not in names]
    return [
        FieldError(
            f"/search/features/{name}",
            Message("common.there_is_no", what=Message("label.feature"), name=repr(name)),
            did_you_mean(str(name), names) if index < MOST_HINTS else "",
        )
        for index, name in enumerate(unknown)
    ]


MOST_PLACES = 5


def spec_of(search: SearchInfo) -> Spec:
    """The spec of a stored search; errors as `written_by`."""
    return read_spec(search.spec, search.engine_version)


def read_spec(document: dict[str, Any], version: str) -> Spec:
    """The spec that this version of the program stored; errors as `written_by`."""
    with written_by(version):
        return Spec.model_validate(document)


@contextmanager
def written_by(version: str) -> Iterator[None]:
    """The block reads what that version stored.

    Raises ConflictError when it holds what this one does not know.
    """
    try:
        yield
    except ValidationError as error:
        places = sorted({"/" + "/".join(str(part) for part in item["loc"]) for item in error.errors()})
        raise ConflictError(
            Message(
                "jobs.unreadable_stored_search",
                version=ENGINE_VERSION,
                written_by=version or "-",
                places=", ".join(places[:MOST_PLACES]),
            )
        ) from error
