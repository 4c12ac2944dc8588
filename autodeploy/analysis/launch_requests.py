"""Launches in requests: strategies, scripts and exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from autodeploy.analysis.intake import placed_in_spec, read_network_spec, refuse_profile
from autodeploy.analysis.launch_checks.baseline import Baseline, unread_baseline
from autodeploy.analysis.launch_checks.launch import Launch, launch_of
from autodeploy.analysis.launch_checks.legality import check_unread
from autodeploy.analysis.what_if.clusters import on_offer
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.formats.registry import target_of
from autodeploy.kit.errors import FieldError, SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.specs.answers import CheckReport, ClusterOffer
from autodeploy.specs.base import Document
from autodeploy.specs.derived_fields import LAID_OUT, of_plan
from autodeploy.specs.field_errors import field_errors
from autodeploy.specs.planset import PlanSet
from autodeploy.specs.reading import recompute_document
from autodeploy.specs.resources import plan_in
from autodeploy.specs.rl import GenerationLayout, RlStrategy
from autodeploy.specs.search import NOTHING_OFFLOADED
from autodeploy.specs.spec import spec_of, vendor_of
from autodeploy.specs.strategy import Strategy
from autodeploy.specs.text_files import refuse_long_key
from autodeploy.stack.frameworks import FRAMEWORKS, title_of
from autodeploy.stack.releases import frameworks_for
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autodeploy.search.planner import LaunchRules, Planner
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.questions import CheckRequest, LaunchRequest
    from autodeploy.specs.spec import Spec


def refuse_illegal(plan_set: PlanSet, plan: Plan, to: str, judge: Callable[[Spec], LaunchRules]) -> None:
    """Refuses a plan that a format's framework does not start: on these chips, of this training, or by a rule.

    judge : says what the target of a spec has against its strategy.

    Raises UnsupportedError with every rule that the plan breaks, and the frameworks on these chips that start it.
    """
    spec, target = spec_of(plan_set.search), target_of(to)
    if target is None or FRAMEWORKS[target].post_trains is not (spec.training.rl is not None):
        return
    faults = _faults(_launched(spec, plan, target), judge)
    if faults:
        vendor = load_profile(spec.cluster.profile).vendor
        others = [each for each in frameworks_for(target, vendor) if not _faults(_launched(spec, plan, each), judge)]
        hint = Message("exporters.export_to", names=", ".join((*others, "json")))
        title = title_of(target)
        raise UnsupportedError(
            errors=tuple(
                FieldError(path, Message("common.cannot_launch_this_plan", release=title, reason=reason), hint)
                for path, reason in faults
            )
        )


def _faults(spec: Spec, judge: Callable[[Spec], LaunchRules]) -> list[tuple[str, str]]:
    """Places and reasons for which a launch of the spec's strategy does not start."""
    try:
        return [
            ("/strategy", Message("common.place", place=rule.rule, message=rule.text)) for rule in judge(spec).stopping
        ]
    except SpecError as error:  # no release for the chips, or a feature that it does not have
        return [("/to", each.message) for each in error.errors]


def _launched(spec: Spec, plan: Plan, target: str) -> Spec:
    """The spec with the plan as its strategy, on the plan's cards and batch, for a framework's release."""
    search, training, strategy = spec.search, spec.training, plan.strategy
    if target != search.target:  # features that were asked for are notes of the other launch
        search = search.model_copy(update={"target": target, "target_release": None, "features": {}})
    asked, batch = training.global_batch_size, plan.micro_batches * strategy.micro_batch_size * (strategy.dp or 1)
    if training.rl is None and abs(batch - asked.value) <= asked.value * asked.tolerance_pct / 100:
        chosen = asked.model_copy(update={"value": batch})
        training = training.model_copy(update={"global_batch_size": chosen})
    cards = {"num_npus": plan.num_npus_used, "blocks": None, "spare_npus": 0}
    cluster = spec.cluster.model_copy(update=cards)
    changed = {"search": search, "training": training, "cluster": cluster, "strategy": strategy}
    return spec.model_copy(update=changed)


def launch_in(planner: Planner, request: LaunchRequest) -> Launch:
    """The launch of a request. One from the network names no file and only profiles that come with the product.

    Raises SpecError with line and column, or with every bad field.
    """
    named, local = (request.cluster, request.device, request.num_npus), request.local
    if local is not None:
        vendor = vendor_of(request.cluster)
        imported = import_file(local.path, variables=request.variables, release=local.release, vendor=vendor)
        return launch_of(imported, *named)
    if request.spec is not None:
        imported = import_document(json.dumps(request.spec), "spec.json")
    else:
        assert request.file is not None
        imported = import_document(request.file, request.filename, variables=request.variables)
    own = imported.document.get("cluster")
    refuse_profile(request.cluster or (own.get("profile") if isinstance(own, dict) else None))
    read_network_spec(imported.spec_document(*named), planner)
    return launch_of(imported, *named)


def _folder_of(request: LaunchRequest) -> Path | None:
    """The folder of the files that a launch names; None for one from the network."""
    return None if request.local is None else request.local.path.parent


def read_check(planner: Planner, request: CheckRequest, baseline: Baseline | None) -> Launch | CheckReport:
    """The launch that a request has checked, or the report of a script that breaks a rule and can't be predicted."""
    try:
        return launch_in(planner, request)
    except SpecError as error:
        if request.file is None:
            raise
        return check_unread(
            request.file,
            error,
            request.limits,
            variables=request.variables,
            cluster=request.cluster,
            num_npus=request.num_npus,
            baseline=baseline,
            own_profiles=request.local is not None,
            folder=_folder_of(request),
        )


def read_baseline(planner: Planner, asked: LaunchRequest) -> Baseline:
    """The launch before a change, or its flags alone where it can't be predicted."""
    try:
        launch = launch_in(planner, asked)
    except SpecError as error:
        if asked.file is None:
            raise
        return unread_baseline(asked.file, asked.filename or "", error, asked.variables, _folder_of(asked))
    return Baseline(launch=launch, flags=launch.flags, name=asked.filename or "")


def baseline_in(document: Any, name: str = "") -> Baseline:
    """The baseline in a document: a plan, the best one of a PlanSet, or what an earlier check found.

    Raises SpecError when there is no plan in it.
    """
    try:
        if isinstance(document, dict) and "gates" in document:
            report = CheckReport.model_validate(document)
            return Baseline(plan=report.plan, flags=report.flags, name=name)
        if isinstance(document, dict) and "plans" in document:
            plans = PlanSet.model_validate(document).plans
            if not plans:
                raise SpecError(
                    Message("services.planset_has_no_plan"),
                    path="/baseline",
                    hint=Message("services.name_search_with_plan"),
                )
            return Baseline(plan=plans[0], name=name)
        return Baseline(plan=plan_in(document), name=name)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix="/baseline")) from error


Model = TypeVar("Model", bound=Document)


def read_offers(spec: Spec, offers: Sequence[ClusterOffer], planner: Planner) -> None:
    """Whether the spec can be planned on every cluster.

    Raises SpecError with the place of the offer: no profile that comes with the product, no grade of it, or a spec that
    it refuses.
    """
    errors: list[FieldError] = []
    for index, offer in enumerate(offers):
        try:
            refuse_profile(offer.profile)
            with placed_in_spec():
                planner.prepare(on_offer(spec, offer))
        except SpecError as error:
            errors += [replace(each, path=_in_offer(each.path, index)) for each in error.errors]
    if errors:
        raise SpecError(errors=tuple(errors))


def _in_offer(path: str, index: int) -> str:
    """The place of a complaint about a cluster in the list of clusters; others are about the spec."""
    head, _, name = path.rpartition("/")
    return f"/clusters/{index}/{name}" if head == "/cluster" and name in ClusterOffer.model_fields else f"/spec{path}"


def read_strategy(document: Mapping[str, Any], base: Strategy | None = None) -> Strategy:
    """A strategy as written; with a base that one with some fields changed, as of `of_plan`.

    Raises SpecError with every bad field.
    """
    fields = _nested(document)
    if "recompute" in fields:
        fields["recompute"] = recompute_document(fields["recompute"])
    given, kept = frozenset(fields), {}
    if base is not None:
        kept = base.model_dump(mode="json", exclude_none=True, exclude={"dp", *LAID_OUT})
        if isinstance(of_base := kept.get("rl"), dict) and isinstance(changed := fields.get("rl", {}), dict):
            fields["rl"] = merged(_without_replicas(of_base), changed)
    if isinstance(how := fields.get("rl"), dict):
        fields["rl"] = _partly_given(how)
    read = _validated(Strategy, kept | fields, "/strategy")
    if base is None:
        return read
    laid_out = {name: getattr(base, name) for name in LAID_OUT if name not in given}
    return of_plan(base, read.model_copy(update=laid_out), given | ({"rl"} & fields.keys()))


def _validated(model: type[Model], fields: Mapping[str, Any], prefix: str) -> Model:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix=prefix, model=model)) from error


def _nested(document: Mapping[str, Any]) -> dict[str, Any]:
    """Axes with dotted names, such as `rl.generation.tp`, in the documents that they are of."""
    tree: dict[str, Any] = {}
    for name, value in document.items():
        refuse_long_key(name, "/strategy")
        inner = value
        for part in reversed(name.split(".")[1:]):
            inner = {part: inner}
        tree = merged(tree, {name.split(".")[0]: inner})
    return tree


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two documents, the second's values over the first's, inside their documents too."""
    both = dict(first)
    for name, value in second.items():
        before = both.get(name)
        both[name] = merged(before, value) if isinstance(before, dict) and isinstance(value, dict) else value
    return both


def _without_replicas(how: Mapping[str, Any]) -> dict[str, Any]:
    """Placement and generation of a plan, without the replicas that follow from its cards and tensor parallelism."""
    generation = {name: value for name, value in how["generation"].items() if name not in ("dp", "ep")}
    return {**how, "generation": generation}


def _partly_given(how: Mapping[str, Any]) -> RlStrategy:
    """Placement and generation, of which some fields are given: `model_fields_set` has those, in `generation` too."""
    given = how.get("generation", {})
    if isinstance(given, Mapping):
        given = _validated(GenerationLayout, given, "/strategy/rl/generation")
    states = how.get("offload")
    words = {"offload": [] if states == NOTHING_OFFLOADED else states.split("+")} if isinstance(states, str) else {}
    layout = _validated(RlStrategy, {**how, **words, "generation": given}, "/strategy/rl")
    if "generation" not in how:
        layout.model_fields_set.discard("generation")
    return layout
