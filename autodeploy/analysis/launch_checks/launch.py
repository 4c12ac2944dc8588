"""A launch to check: a spec with its strategy, and where it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.search import SHORT_SEARCH
from hardware_profiles import load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.formats.common.import_result import ImportResult
    from autodeploy.formats.common.launch_script import LaunchScript
    from autodeploy.search.planner import Planner
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec


# The search that a launch is compared with.
def best_of_short_search(spec: Spec, planner: Planner, *, time_limit_s: float) -> PlanSet:
    """The best plan with the model, cluster and batch of a launch, without its strategy.

    Days and cost of the run are left out: they say nothing about which plan is best.
    """
    asked: dict[str, Any] = {
        "strategy": None,
        "run": None,
        "training": spec.training.model_copy(update={"tokens": None}),
        "search": spec.search.model_copy(update={**SHORT_SEARCH, "time_limit_s": time_limit_s}),
    }
    return planner.plan(spec.model_copy(update=asked), alone=True)


@dataclass(frozen=True, slots=True)
class Launch:
    """A spec with a strategy.

    `flags` are those of its script with their values; None where it has no script. `ranks` are the processes that it
    starts, where they are known; `unmodelled` says what changes the result and no prediction knows, `assumptions` what
    had to be assumed.
    """

    spec: Spec
    source: str = "spec"
    contradictions: tuple[str, ...] = ()
    unknown_flags: tuple[str, ...] = ()
    flags: Mapping[str, str] | None = None
    script: LaunchScript | None = None
    ranks: int | None = None
    unmodelled: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()


def launch_of(
    imported: ImportResult, cluster: str | None = None, device: str | None = None, num_npus: int | None = None
) -> Launch:
    """The launch that a file describes.

    Raises SpecError with every bad or missing field; a script that names no chip asks for --cluster.
    """
    spec = imported.spec(cluster, device, num_npus)
    if spec.strategy is None:
        raise SpecError(
            Message("common.is_required", name="strategy"),
            path="/strategy",
            hint=Message("checks.strategy_or_launch_script"),
        )
    unknown = tuple(
        Message("checks.line", flag=flag.name, line=flag.line) if flag.line else flag.name for flag in imported.kept
    )
    flags = imported.flags if imported.kind == "launch-script" else None
    return Launch(
        spec,
        imported.kind,
        imported.diagnostics.contradictions,
        unknown,
        flags,
        imported.script,
        ranks_of(imported.script, spec.cluster.profile, num_npus),
        *_doubts(imported, spec),
    )


def _doubts(imported: ImportResult, spec: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Settings that are not modelled or assumed: of the file itself, or what travelled with a spec."""
    notes = imported.diagnostics
    if imported.pre_trains:
        contradicted = frozenset(notes.contradictions)
        return notes.doubts, tuple(text for text in notes.assumptions if text not in contradicted)
    return spec.unmodelled, spec.doubts


def ranks_of(script: LaunchScript | None, profile: str, num_npus: int | None) -> int | None:
    """Processes that a script starts: those of the cards asked for, else those that it says itself."""
    if script is None:
        return None
    return script.ranks if num_npus is None else num_npus * load_profile(profile).devices_per_npu
