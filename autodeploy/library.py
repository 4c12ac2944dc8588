"""The engine as a library: every question that the command line answers, in this process, without a database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from autodeploy.analysis.ablation.feature_ablation import ablate as ablation_of
from autodeploy.analysis.intake import with_checkpoints
from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.launch_check import check as check_launch
from autodeploy.analysis.launch_requests import read_strategy, refuse_illegal
from autodeploy.analysis.what_if.improve import improve as improvements_of
from autodeploy.analysis.what_if.recommend import recommend as fewest_cards
from autodeploy.calibration.validation import validate_file
from autodeploy.formats import registry
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.reports import figures
from autodeploy.reports.comparison import compare_plans
from autodeploy.reports.notebook import notebook_html
from autodeploy.search import planner
from autodeploy.search.planner import Planner
from autodeploy.specs.answers import CheckLimits
from autodeploy.specs.diagnostics import show_in_notebooks
from autodeploy.specs.planset import PlanSet
from autodeploy.specs.questions import MAX_COMPARED, Budget, read_request
from autodeploy.specs.reading import read_spec_document, read_spec_file
from autodeploy.specs.spec import Spec
from autodeploy.specs.spec import spec_of as searched_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.calibration.validation import ValidationReport
    from autodeploy.messages import Language
    from autodeploy.search.progress import Progress
    from autodeploy.specs.answers import CheckReport, ImproveReport, Recommendation, WhyNot
    from autodeploy.specs.artefact import Artefact
    from autodeploy.specs.plan_details import AblationReport, Comparison
    from autodeploy.specs.planset import Plan

show_in_notebooks(notebook_html)

SpecSource: TypeAlias = "Spec | Mapping[str, Any] | str | Path"


def plan(
    spec: SpecSource,
    *,
    progress: Callable[[Progress], None] | None = None,
    should_cancel: Callable[[], bool] | None = None,
) -> PlanSet:
    """Search the strategies of a spec: the best plans, ranked and explained.

    Parameters
    ----------
    spec : a `Spec`, a document as `dict`, or the path of a YAML or JSON file.
    progress : called during the search with its incumbent and bound.
    should_cancel : polled during the search, which returns what it has once this is true.

    Raises autodeploy.SpecError with every invalid field. An infeasible spec is a result: `status` is `infeasible`, with
    `binding_rules`.
    """
    return planner.plan(spec_of(spec), progress=progress, should_cancel=should_cancel)


def estimate(spec: SpecSource) -> Plan:
    """Predict step time [s] and memory [GiB] of the one `strategy` in a spec.

    Raises autodeploy.SpecError with every invalid field, or if the strategy can't be simulated. One that violates rules
    of its framework is predicted all the same, and the plan's `broken_rules` name them; `check` is the gate.
    """
    return planner.estimate(spec_of(spec))


def check(
    launch: SpecSource,
    *,
    limits: CheckLimits | None = None,
    variables: Mapping[str, str] | None = None,
    cluster: str | None = None,
    device: str | None = None,
    num_npus: int | None = None,
) -> CheckReport:
    """Check a launch against the rules of its framework, predict it, and check the prediction against limits.

    Parameters
    ----------
    launch : a spec with a strategy, or the path of one, of a launch script (never executed) or of a framework's YAML.
    variables : shell variables that a script expects.
    cluster, device, num_npus : for scripts that do not name chips or number of cards.

    Raises autodeploy.SpecError with line and column, or with every invalid or missing field.
    """
    asked = _launch(launch, variables, cluster, device, num_npus)
    return check_launch(asked, limits or CheckLimits(), planner=Planner())


def improve(
    launch: SpecSource,
    *,
    variables: Mapping[str, str] | None = None,
    cluster: str | None = None,
    device: str | None = None,
    num_npus: int | None = None,
) -> ImproveReport:
    """Find the single changes of a launch that gain most; parameters and errors as `check`."""
    return improvements_of(_launch(launch, variables, cluster, device, num_npus), planner=Planner())


def why_not(subject: SpecSource | PlanSet, strategy: Mapping[str, Any]) -> WhyNot:
    """Explain why a strategy was not chosen: the rule it violates, the memory it lacks, or what it costs.

    Parameters
    ----------
    subject : a plan set, whose best plan is changed; or a spec, for which the best plan is searched.
    strategy : axes to fix, such as `{"tp": 8, "pp": 4}`; all others are optimised.

    Raises autodeploy.SpecError with every invalid field, or when the degrees contradict the cluster.
    """
    if isinstance(subject, PlanSet):
        changed = read_strategy(strategy, subject.plans[0].strategy if subject.plans else None)
        return planner.why_not(searched_spec(subject.search), changed, best=subject)
    return planner.why_not(spec_of(subject), read_strategy(strategy))


def compare(*plans: PlanSet | tuple[PlanSet, Plan]) -> Comparison:
    """Show the differences between plans: of each plan set the best one, or the one beside it.

    Raises autodeploy.SpecError when there are not two to five, or one has no plan.
    """
    if not 2 <= len(plans) <= MAX_COMPARED:
        count = Message("field_fault.has_entries", count=len(plans))
        raise SpecError(count, path="/plans", hint=f"2 to {MAX_COMPARED}")
    pairs = [each if isinstance(each, tuple) else _with_best(each) for each in plans]
    return with_checkpoints(compare_plans(pairs), pairs)


def recommend(
    spec: SpecSource,
    *,
    days: float | None = None,
    npu_hours: float | None = None,
    tokens: float | None = None,
    max_npus: int | None = None,
) -> Recommendation:
    """Find the fewest cards that train so many tokens in so many days, or the most that so many card-hours pay for.

    Parameters
    ----------
    days : the deadline. npu_hours : the budget; with a deadline too, the answer keeps both.
    tokens : default: the spec's. max_npus : default: 16 times the spec's cards.

    Raises autodeploy.SpecError with every invalid field, or when there is no number of tokens.
    """
    asked = {"days": days, "npu_hours": npu_hours, "tokens": tokens, "max_npus": max_npus}
    return fewest_cards(spec_of(spec), read_request(Budget, asked), planner=Planner())


def ablate(spec: SpecSource, order: Sequence[str] = ()) -> AblationReport:
    """Predict what each feature contributes, of the spec's strategy or of its best plan.

    Parameters
    ----------
    order : features of the cumulative rows, the first first; the others follow.

    Raises autodeploy.SpecError when no plan fits, or `order` names a feature that the strategy does not use.
    """
    return ablation_of(spec_of(spec), order=order)


def validate(records: str | Path, *, overlay: str | Path | None = None) -> ValidationReport:
    """Predict the measured runs in a JSON-lines file and report the errors.

    Parameters
    ----------
    overlay : calibration to apply to the profiles.

    Raises autodeploy.SpecError when a file can't be read, or no line is a record.
    """
    return validate_file(Path(records), None if overlay is None else Path(overlay))[0]


def export(plan_set: PlanSet, to: str, *, plan: Plan | None = None, lang: Language = "en") -> Artefact:
    """Export a plan to another format: a launch script, JSON, CSV, a report; its text, file name and notes.

    Parameters
    ----------
    to : a format of `autodeploy export --help`.
    plan : the best one unless given.

    Raises autodeploy.SpecError when there is no such format or plan, or a rule of the framework stops the launch.
    """
    chosen = plan or _with_best(plan_set)[1]
    refuse_illegal(plan_set, chosen, to, planner.launch_rules)
    spec = searched_spec(plan_set.search)
    return registry.export(plan_set, chosen, to, timeline=lambda: planner.timeline(spec, chosen.strategy), lang=lang)


def picture(plan_set: PlanSet, name: Literal["time", "memory", "front"] = "time", *, lang: Language = "en") -> Any:
    """Draw plans as a plotly figure: time by part, memory of the best plan's stages [GiB], or time against memory."""
    if name == "memory":
        figure = figures.stage_memory(_with_best(plan_set)[1], lang)
    else:
        draw = figures.step_time_breakdown if name == "time" else figures.time_and_memory
        figure = draw(plan_set.plans, lang)
    return figures.notebook_figure(figure)


def _with_best(plan_set: PlanSet) -> tuple[PlanSet, Plan]:
    if not plan_set.plans:
        raise SpecError(Message("services.planset_has_no_plan"), path="/plans")
    return plan_set, plan_set.plans[0]


def _launch(
    launch: SpecSource,
    variables: Mapping[str, str] | None,
    cluster: str | None,
    device: str | None,
    num_npus: int | None,
) -> Launch:
    if isinstance(launch, str | Path):
        imported = import_file(Path(launch), variables=variables)
    else:
        document = launch.model_dump(mode="json") if isinstance(launch, Spec) else dict(launch)
        imported = import_document(json.dumps(document), "spec.json", base_dir=Path())
    return launch_of(imported, cluster, device, num_npus)


def spec_of(source: SpecSource) -> Spec:
    """The validated spec of a document or a file; a `Spec` is returned unchanged.

    Raises autodeploy.SpecError with every invalid field: `error.errors` has pointer, message and hint of each.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, Mapping):
        return read_spec_document(source, base_dir=Path())
    return read_spec_file(source)
