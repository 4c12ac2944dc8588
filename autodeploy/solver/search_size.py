"""How large a search is: what its time depends on, counted without searching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autodeploy.solver.effort import LEVELS, USUAL
from autodeploy.solver.search_space import legal_tree, of_sizes, space_of
from autodeploy.strategies.space_size import grid_cells, most_candidates

if TYPE_CHECKING:
    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.feature_choice import FeatureChoice
    from hardware_profiles.profile import Profile

# Grids beyond this are not judged but guessed: a submission waits for the answer.
MOST_JUDGED = 250_000
LEGAL_SHARE = 0.2
"""Of the most candidates that a large space can have, so many are legal: 0.09 to 0.31 on eight specs."""
DEEP_WORK = 5.0
"""Work of `effort: deep` in that of the default: 1 to 13 on five specs, by when the gap is closed."""


@dataclass(frozen=True, slots=True)
class SearchSize:
    """What the time of a search depends on.

    candidates : legal ones, before it is known which fit; layers : of the model; effort : work in that of the default;
    phases : searches of their own that the run's phases add.
    """

    candidates: int
    layers: int
    effort: float
    phases: int = 0


def search_size(spec: Spec, profile: Profile, choice: FeatureChoice, nominal: Context) -> SearchSize:
    """The size of the search of a spec: a tenth of a second at most."""
    candidates = 0.0
    for context in of_sizes(spec, profile, choice, nominal):
        space = space_of(spec.search, context, profile, choice)
        if grid_cells(space) > MOST_JUDGED:
            candidates += LEGAL_SHARE * most_candidates(space, context.world)
        else:
            candidates += len(legal_tree(spec.search, context, profile, choice)[0])
    return SearchSize(round(candidates), nominal.model.num_hidden_layers, _effort(spec), _phases(spec))


def _effort(spec: Spec) -> float:
    """Of `deep` and of numbers; where more plans are asked for than are looked at, that many are."""
    effort = spec.search.effort
    scale = DEEP_WORK if effort == "deep" else LEVELS[effort].quick / USUAL.quick if isinstance(effort, str) else effort
    return max(scale, 2.0 * spec.search.top_k / USUAL.quick)


def _phases(spec: Spec) -> int:
    """Other sequence lengths and batches of the run, each of which is searched where layouts may change."""
    if spec.run is None or spec.run.layout_changes != "allowed":
        return 0
    usual = (spec.training.seq_length, spec.training.global_batch_size.value)
    found = {(phase.seq_length or usual[0], phase.global_batch_size or usual[1]) for phase in spec.run.phases}
    return len(found - {usual})
