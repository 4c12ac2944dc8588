"""The request of a check: a spec or a launch file, limits and perhaps a baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from autodeploy.checks.baseline import Baseline, unread_baseline
from autodeploy.checks.launch import Launch, launch_of
from autodeploy.checks.legality import refuse_unknown_rules
from autodeploy.checks.unread import check_unread
from autodeploy.errors import SpecError
from autodeploy.importers.import_document import import_document
from autodeploy.jobs.planning import load_planner
from autodeploy.messages import Message
from autodeploy.services.intake import read_network_spec, refuse_profile
from autodeploy.specs.base import Document
from autodeploy.specs.check import CheckLimits, CheckReport
from autodeploy.specs.planset import Plan, PlanSet
from autodeploy.specs.validation import field_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.services.session import Services

Text = Annotated[str, Field(max_length=200)]


class LaunchRequest(Document):
    """A launch: `spec` with a strategy, or `file` with the text of a launch script, a framework's YAML or a spec."""

    spec: Annotated[dict[str, Any] | None, Field(description="a spec with a strategy")] = None
    file: Annotated[str | None, Field(max_length=1_000_000)] = None
    filename: Annotated[Text | None, Field(description="helps where the text alone does not tell")] = None
    variables: Annotated[dict[Text, str] | None, Field(description="variables that a launch script expects")] = None
    cluster: Annotated[Text | None, Field(description="hardware profile, where the file names no chip")] = None
    device: Text | None = None
    num_npus: Annotated[int | None, Field(ge=1, le=200_000)] = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.spec is None) == (self.file is None):
            raise ValueError(Message("common.give_either", one="spec", other="file"))
        return self


class CheckRequest(LaunchRequest):
    """What to check, and the limits it is held against."""

    limits: CheckLimits = CheckLimits()
    baseline: Annotated[
        str | dict[str, Any] | None,
        Field(
            description="a plan id, a plan, a PlanSet (its best plan), a CheckReport, or the launch before a change: "
            "{file, filename}"
        ),
    ] = None


def network_launch(planner: str, request: LaunchRequest) -> Launch:
    """The launch of a request from the network: it names no file and only profiles that come with the product.

    Raises
    ------
    SpecError
        with line and column, or with every bad field.
    """
    if request.spec is not None:
        imported = import_document(_json(request.spec), "spec.json")
    else:
        assert request.file is not None
        imported = import_document(request.file, request.filename, variables=request.variables)
    own = imported.document.get("cluster")
    refuse_profile(request.cluster or (own.get("profile") if isinstance(own, dict) else None))
    document = imported.spec_document(request.cluster, request.device, request.num_npus)
    read_network_spec(document, load_planner(planner))
    return launch_of(imported, request.cluster, request.device, request.num_npus)


def _json(document: Mapping[str, Any]) -> str:
    import json

    return json.dumps(document)


def check_of_request(request: CheckRequest, services: Services) -> CheckReport:
    """The check that a request from the network asks for.

    Raises
    ------
    SpecError
        with line and column, or with every bad field.
    NotFoundError
        when the baseline names no plan.
    """
    refuse_unknown_rules(request.limits.allow_rules)
    baseline = _network_baseline(request, services)
    read = services.read(read_check, services.planner_module, request, baseline)
    return read if isinstance(read, CheckReport) else services.check(read, request.limits, baseline)


def read_check(planner: str, request: CheckRequest, baseline: Baseline | None) -> Launch | CheckReport:
    """The launch that a request has checked, or the report of a script that breaks a rule and can't be predicted."""
    try:
        return network_launch(planner, request)
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
            own_profiles=False,
        )


def _network_baseline(request: CheckRequest, services: Services) -> Baseline | None:
    """The baseline of a request: the file before a change is for the same cluster and with the same variables."""
    given = request.baseline
    if not isinstance(given, dict) or "file" not in given:
        return services.baseline(given)
    own = request.model_dump(include={"variables", "cluster", "device", "num_npus"}, exclude_none=True)
    try:
        asked = LaunchRequest.model_validate(own | given)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix="/baseline")) from error
    return services.read(read_baseline, services.planner_module, asked)


def read_baseline(planner: str, asked: LaunchRequest) -> Baseline:
    """The launch before a change, or its flags alone where it can't be predicted."""
    try:
        launch = network_launch(planner, asked)
    except SpecError as error:
        if asked.file is None:
            raise
        return unread_baseline(asked.file, asked.filename or "", error, asked.variables)
    return Baseline(launch=launch, flags=launch.flags, name=asked.filename or "")


def baseline_in(document: Any, name: str = "") -> Baseline:
    """The baseline in a document: a plan, the best one of a PlanSet, or what an earlier check found.

    Raises
    ------
    SpecError
        when there is no plan in it.
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
        plan_document = document if not isinstance(document, dict) else _without(document, {"search_id", "stale"})
        return Baseline(plan=Plan.model_validate(plan_document), name=name)
    except ValidationError as error:
        raise SpecError(errors=field_errors(error, prefix="/baseline")) from error


def _without(document: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in names}
