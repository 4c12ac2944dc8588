"""What stands beside the plans of a search, whatever they are: the reference, and what other sizes would give."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from autodeploy.ranking.divisibility import NearRates, near_rates
from autodeploy.ranking.reference import reference_plan
from autodeploy.solver.effort import cores
from autodeploy.solver.outer.worker_process import Future, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.deadline import Deadline
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.ranking.plans import Identity
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile


class BesidePlans:
    """Found by a second process while the space is searched, where there is one; else when it is asked for."""

    def __init__(
        self, spec: Spec, profile: Profile, context: Context, identity: Identity, deadline: Deadline | None = None
    ) -> None:
        self._deadline = deadline
        self._worker_process = WorkerProcess(
            _Finder(spec, profile, context, identity), parallel=cores() > 1, should_cancel=deadline
        )
        self._begun: Future[tuple[Plan | None, NearRates]] | None = None

    def __enter__(self) -> BesidePlans:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker_process.close()

    def begin(self) -> None:
        """Start on it, where that keeps nobody waiting."""
        if self._worker_process.parallel:
            self._begun = self._worker_process.begin(_Finder.found)

    def found(self) -> tuple[Plan | None, NearRates]:
        """The plan to compare with, and the rates of batches and numbers of cards near the spec's; nothing of them
        where the search has to end before they are known.
        """
        ask = self._found if self._deadline is None else partial(self._deadline.describe, self._found)
        return ask() or (None, NearRates({}, {}))

    def _found(self) -> tuple[Plan | None, NearRates] | None:
        return (self._begun or self._worker_process.begin(_Finder.found)).result()


class _Finder:
    def __init__(self, spec: Spec, profile: Profile, context: Context, identity: Identity) -> None:
        self._spec, self._profile, self._context, self._identity = spec, profile, context, identity
        self.stopped: Callable[[], bool] = lambda: False

    def found(self) -> tuple[Plan | None, NearRates]:
        return (
            reference_plan(self._spec, self._profile, self._context, self._identity),
            near_rates(self._spec, self._profile, self._context),
        )
