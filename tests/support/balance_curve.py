"""What each way to level the load buys by itself, as a curve over the imbalance it meets.

Three parts, each on a strategy where nothing else is uneven: experts that migrate over the routing imbalance, samples
that are rearranged over the imbalance of attention, and layers placed freely over the imbalance of the stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.context import attention_factor, packs_of
from autodeploy.costs.stages.build_problem import build_problem
from autodeploy.costs.stages.inner_problem import chunk_times
from autodeploy.costs.steps.one_strategy import Estimated, estimated
from autodeploy.kit.errors import SpecError
from autodeploy.search.choices.effort import FAST
from autodeploy.search.placement.solve import solve
from autodeploy.search.planner import prepare
from autodeploy.search.prepared import context_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.costs.stages.inner_problem import InnerProblem
    from autodeploy.specs.spec import Spec

SHORT = 16  # documents of the curve are whole sequences, or a sixteenth of one
BISECTIONS = 24
OF_STAGES = 7  # a step of theirs is a whole search
BALANCE = "virtual_pipeline_balance"


@dataclass(frozen=True, slots=True)
class BalancePoint:
    """Throughput that each part adds at one imbalance, in percent."""

    imbalance: float
    expert_migration_pct: float
    sample_rearrangement_pct: float
    virtual_pipeline_balance_pct: float


def balance_curve(spec: Spec, features: frozenset[str], imbalances: Sequence[float]) -> tuple[BalancePoint, ...]:
    """The curve of a spec's strategy.

    Parameters
    ----------
    features : that are on beside the one that is priced.
    imbalances : max / mean over ranks, or stages, that each part meets; at least 1.

    Raises
    ------
    SpecError
        if the spec has no strategy, or the model no experts.
    """
    if spec.strategy is None or not spec.model.is_moe:
        raise SpecError("the curve needs a strategy of a model with experts", path="/strategy")
    return tuple(
        BalancePoint(
            imbalance,
            _experts_pct(spec, features, imbalance),
            _samples_pct(spec, features, imbalance),
            _stages_pct(spec, features, imbalance),
        )
        for imbalance in imbalances
    )


def _predicted(spec: Spec, features: frozenset[str], **training: object) -> Estimated:
    """The strategy's estimate with even experts and full sequences but for what `training` says."""
    even = {"routing_imbalance": 1.0, "expert_load_file": None, "sequence_length_histogram": None}
    changed = spec.model_copy(update={"training": spec.training.model_copy(update={**even, **training})})
    assert changed.strategy is not None
    return estimated(changed.strategy, context_for(prepare(changed), changed.strategy, features))


def _gain_pct(before_s: float, after_s: float) -> float:
    return 100.0 * (before_s / after_s - 1.0)


def _experts_pct(spec: Spec, features: frozenset[str], imbalance: float) -> float:
    uneven = {"routing_imbalance": imbalance, "routing_imbalance_peak": max(imbalance, 2.0)}
    placed, moved = (
        _predicted(spec, features - {"expert_migration"} | on, **uneven).estimate.step_time_s
        for on in (frozenset[str](), frozenset({"expert_migration"}))
    )
    return _gain_pct(placed, moved)


def _samples_pct(spec: Spec, features: frozenset[str], imbalance: float) -> float:
    histogram = lengths_of_imbalance(spec, features, imbalance)
    in_order, levelled = (
        _predicted(
            spec, features - {"sample_rearrangement"} | on, sequence_length_histogram=histogram
        ).estimate.step_time_s
        for on in (frozenset[str](), frozenset({"sample_rearrangement"}))
    )
    return _gain_pct(in_order, levelled)


def lengths_of_imbalance(spec: Spec, features: frozenset[str], imbalance: float) -> dict[str, float]:
    """Whole and short documents in the proportion that makes attention this uneven, in the order they are read."""
    seq = spec.training.seq_length
    base = _predicted(spec, features - {"sample_rearrangement"})

    def histogram(whole: float) -> dict[str, float]:
        return {str(seq): whole, str(max(1, seq // SHORT)): (1.0 - whole) * SHORT}

    def uneven(whole: float) -> float:
        packs = packs_of(histogram(whole), seq, base.context.global_batch)
        return float(attention_factor(packs, base.candidate, rearranged=False)[0])

    return histogram(_bisected(lambda share: -uneven(share), 0.05, 1.0, -imbalance))


def _bisected(
    rising: Callable[[float], float], low: float, high: float, wanted: float, bisections: int = BISECTIONS
) -> float:
    for _ in range(bisections):
        middle = (low + high) / 2.0
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return high


def _stages_pct(spec: Spec, features: frozenset[str], imbalance: float) -> float:
    """Free against even placement, memory aside, where a larger head makes the last stage this uneven."""
    rows = float(spec.model.vocab_size)

    def problem(vocabulary: float, on: frozenset[str]) -> InnerProblem:
        model = spec.model.model_copy(update={"vocab_size": int(vocabulary)})
        found = _predicted(spec.model_copy(update={"model": model}), on)
        lowered = build_problem(found.priced, choices=frozenset())
        return replace(lowered, limit_bytes=1e18)

    even, free = features - {BALANCE}, features | {BALANCE}

    def uneven(vocabulary: float) -> float:
        lowered = problem(vocabulary, even)
        found = solve(lowered, effort=FAST).plan
        assert found is not None
        times = chunk_times(lowered, found.layout[None], np.zeros((1, lowered.pp, 0), dtype=np.int64))
        stages = (times.forward_s + times.backward_s)[0].sum(axis=-1)
        return float(stages.max() / stages.mean())

    if imbalance <= 1.0:
        return 0.0
    wanted = rows if uneven(rows) >= imbalance else _bisected(uneven, rows, 256.0 * rows, imbalance, OF_STAGES)
    steps = (solve(problem(wanted, on), effort=FAST).step_s for on in (even, free))
    return max(0.0, _gain_pct(*steps))
