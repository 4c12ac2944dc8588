"""What stands beside the plans of a search, whatever they are: the usual start, and what divisibility costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autodeploy.ranking.divisibility import divisibility_warnings
from autodeploy.ranking.reference import usual_start

if TYPE_CHECKING:
    from collections.abc import Callable

    from autodeploy.evaluation.context import Context
    from autodeploy.ranking.plans import Identity
    from autodeploy.solver.search_space import Searched
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile


class BesidePlans:
    """Computes it; a second process may, while the plans themselves are made."""

    def __init__(self, spec: Spec, profile: Profile, context: Context, searched: Searched, identity: Identity) -> None:
        self._spec, self._profile, self._context = spec, profile, context
        self._searched, self._identity = searched, identity
        self.stopped: Callable[[], bool] = lambda: False

    def found(self) -> tuple[Plan | None, list[str]]:
        """The plan that people launch first, and warnings that name a batch or cards that divide better."""
        return (
            usual_start(self._spec, self._profile, self._context, self._identity),
            divisibility_warnings(self._spec, self._profile, self._context, self._searched),
        )
