"""The engine as a library: plan, estimate and check in this process, without a database."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autodeploy.analysis.launch_checks.launch import launch_of
from autodeploy.analysis.launch_checks.launch_check import check as check_launch
from autodeploy.formats.import_document import import_document, import_file
from autodeploy.search import planner
from autodeploy.specs.answers import CheckLimits
from autodeploy.specs.reading import read_spec_document, read_spec_file
from autodeploy.specs.spec import Spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.search.progress import Progress
    from autodeploy.specs.answers import CheckReport
    from autodeploy.specs.planset import Plan, PlanSet

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

    Raises
    ------
    autodeploy.SpecError
        with every invalid field. An infeasible spec is a result: `status` is `infeasible`, with `binding_rules`.
    """
    return planner.plan(spec_of(spec), progress=progress, should_cancel=should_cancel)


def estimate(spec: SpecSource) -> Plan:
    """Predict step time [s] and memory [GiB] of the one `strategy` in a spec.

    Raises
    ------
    autodeploy.SpecError
        with every invalid field, or if the strategy can't be simulated. One that violates rules of its framework is
        predicted all the same, and the plan's `broken_rules` name them; `check` is the gate.
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

    Raises
    ------
    autodeploy.SpecError
        with line and column, or with every invalid or missing field.
    """
    if isinstance(launch, str | Path):
        imported = import_file(Path(launch), variables=variables)
    else:
        document = launch.model_dump(mode="json") if isinstance(launch, Spec) else dict(launch)
        imported = import_document(json.dumps(document), "spec.json", base_dir=Path())
    imported_launch = launch_of(imported, cluster, device, num_npus)
    return check_launch(imported_launch, limits or CheckLimits(), planner=planner)


def spec_of(source: SpecSource) -> Spec:
    """The validated spec of a document or a file; a `Spec` is returned unchanged.

    Raises
    ------
    autodeploy.SpecError
        with every invalid field: `error.errors` has pointer, message and hint of each.
    """
    if isinstance(source, Spec):
        return source
    if isinstance(source, Mapping):
        return read_spec_document(source, base_dir=Path())
    return read_spec_file(source)
