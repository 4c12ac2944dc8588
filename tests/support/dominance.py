"""The best plan of a record's own run: model, cluster and batch as they were, everything else free."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.analysis.ablation.feature_ablation import active_features
from autodeploy.calibration.record_prediction import predict_record
from autodeploy.costs.inputs.build_context import spec_context, with_alternatives
from autodeploy.costs.sweep.sweep import sweep
from autodeploy.search.branch_and_bound.best_first import best_first
from autodeploy.search.branch_and_bound.frontier import SearchRequest
from autodeploy.search.branch_and_bound.search_space import legal_candidates, search_space
from autodeploy.search.choices.effort import FAST, Budget
from autodeploy.space.feature_choice import FeatureChoice, always_on, choose_features, launchable_features
from autodeploy.space.rules import broken_rules
from autodeploy.specs.search import SearchSpec
from autodeploy.specs.spec import Spec
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import FRAMEWORKS
from tests.support.cut_costs import cut_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autodeploy.calibration.record_prediction import Prediction
    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.unit_costs import CutCosts
    from autodeploy.costs.sweep.sweep import Sweep
    from autodeploy.search.branch_and_bound.frontier import SearchState
    from autodeploy.space.candidates import Candidates
    from autodeploy.specs.record import Record
    from autodeploy.specs.search import Switch

ALGORITHMS = {"ring": "ring", "ulysses": "ulysses", "hybrid": "hybrid_cp"}
# Features that a run had by another flag, which a certificate names where no search looks at it.
BY_FLAG = {"coc": "--tp-comm-overlap"}
BUDGET = Budget(quick=24, slots=2_500_000.0, refined=1, effort=FAST)


@dataclass(frozen=True, slots=True)
class Dominance:
    """The published strategy and the best plan, in predicted seconds a step.

    comparable : the published strategy obeys the arithmetic rules and is predicted to fit: a search may find it.
    """

    record: str
    published_s: float
    best_s: float | None
    comparable: bool
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether the best plan is no slower, to rounding."""
        return self.best_s is not None and self.best_s <= self.published_s * (1.0 + 1e-6)


def dominance(record: Record, *, whole: bool = False) -> Dominance:
    """Search the record's own context and compare with the estimate of what was run.

    whole : search to the end of the budget; else until a plan is no slower than what was run, all that is asked.
    """
    prediction = predict_record(record)
    why = incomparable(prediction)
    # Features that a field of the strategy says are in use, too: the search may use them as the run did.
    on = prediction.context.features | frozenset(active_features(record.strategy, prediction.context.features))
    if record.strategy.cp > 1:
        on |= {ALGORITHMS[record.strategy.cp_algo or "ring"]}
    context = replace(prediction.context, features=on)
    choice = FeatureChoice(on, {name: "auto" if name in on else "off" for name in FEATURES}, {})
    legal, _ = legal_candidates(SearchSpec(target="any"), context, prediction.profile, choice)
    swept = sweep(legal, context)
    fits = np.flatnonzero(np.isfinite(swept.after_recompute_s)) if len(legal) else np.zeros(0, dtype=np.int64)
    legal, swept = legal.take(fits), swept.take(fits)
    costs, enough_s = cut_costs(legal, context), 0.0 if whole else prediction.step_time_s
    best_s = _best_s(legal, swept, lambda _: context, costs, enough_s)
    return Dominance(record.id, prediction.step_time_s, best_s, not why, why)


def dominance_under_auto(record: Record, *, whole: bool = False) -> Dominance:
    """Search with every feature at auto for the framework of the run, and compare with the estimate of what was run.

    `whole` as in `dominance`. What a record says beside features - its release, a compiled graph, what a certificate
    names as not searched - stays as it was. So do lossy numerics, whether experts are multiplied together, and what is
    on only where it is asked for, as the number format of gradients: `auto` does not decide them by time.
    """
    prediction = predict_record(record)
    had = prediction.context.features
    lossy = any(FEATURES[name].numerics == "lossy" for name in had & set(FEATURES))
    target = record.framework if record.framework in FRAMEWORKS else "megatron"
    release = SearchSpec(target=target).release(prediction.profile.vendor)
    launched = launchable_features(release)
    beside = {name for name in had & set(BY_FLAG) if release is not None and BY_FLAG[name] in release.not_searched}
    asked: dict[str, Switch] = {name: "on" for name in sorted(had & launched) if FEATURES[name].only_asked}
    if record.model.is_moe and "grouped_gemm" not in had | always_on(release):
        asked["grouped_gemm"] = "off"
    search = SearchSpec(
        target=target,
        numerics="lossy" if lossy else "reordered",
        features=asked,
    )
    choice = choose_features(search, record.model, prediction.profile)
    spec = Spec(model=record.model, cluster=record.cluster, training=record.training, search=search)
    # Parameters are gathered where states are sharded, which is the run's own and no axis of a search.
    apart_states = frozenset() if record.strategy.distributed_optimizer else frozenset({"overlap_param_gather"})
    context = spec_context(
        spec,
        prediction.profile,
        (choice.on - apart_states) | (had - set(FEATURES)) | beside,
        distributed_optimizer=record.strategy.distributed_optimizer,
        release=prediction.context.release,
    )
    context = with_alternatives(context, choice, record.training)
    why = incomparable(prediction, target, context.facts)
    searched = search_space(spec, prediction.profile, choice, context)
    enough_s = 0.0 if whole else prediction.step_time_s
    best_s = _best_s(searched.candidates, searched.swept, searched.context_of, searched.costs, enough_s)
    return Dominance(record.id, prediction.step_time_s, best_s, not why, why)


def _best_s(
    candidates: Candidates,
    swept: Sweep,
    contexts: Callable[[int], Context],
    costs: CutCosts,
    enough_s: float,
) -> float | None:
    """Step time of the best plan within the budget, or of the first that takes no longer than enough_s."""
    best_s = math.inf

    def watch(frontier: SearchState, _index: int) -> None:
        nonlocal best_s
        best_s = min(best_s, frontier.incumbent_s or math.inf)

    request = SearchRequest(candidates, swept, contexts, 1, 0.0, BUDGET, costs, watch, lambda: best_s <= enough_s)
    return best_first(request).incumbent_s


MOST_CHUNKS = 8  # strategies/space.py


def incomparable(prediction: Prediction, target: str = "any", facts: Mapping[str, Any] | None = None) -> str:
    """Why no search could find the strategy, or nothing. facts: of the searched software; absent: of the run's own."""
    context = prediction.context
    broken = broken_rules(prediction.candidate, context.facts if facts is None else facts, target)[0]
    if broken:
        return f"breaks {broken[0].name}"
    if float(np.max(prediction.estimate.card_bytes)) > context.limit_bytes:
        return "does not fit"
    if int(prediction.candidate.vpp[0]) > MOST_CHUNKS:
        return "has more chunks a stage than searches look at"
    return "" if math.isfinite(prediction.step_time_s) else "no time"
