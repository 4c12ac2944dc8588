"""From a spec to swept candidates: enumerate, judge by rules, evaluate, drop what can't fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autodeploy.errors import SpecError
from autodeploy.evaluation.build_context import build_context
from autodeploy.evaluation.sweep import Sweep, sweep
from autodeploy.specs.planset import Counts
from autodeploy.strategies.candidates import Candidates, concatenate
from autodeploy.strategies.rules import judge
from autodeploy.strategies.space import default_space, enumerate_space, restrict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.evaluation.context import Context
    from autodeploy.specs.search import SearchSpec
    from autodeploy.specs.spec import Spec
    from autodeploy.strategies.feature_choice import FeatureChoice
    from hardware_profiles.profile import Profile


@dataclass(frozen=True)
class Searched:
    """Candidates that are legal and may fit, with their sweep. `variant` indexes contexts (cards, batch)."""

    candidates: Candidates
    swept: Sweep
    variant: npt.NDArray[np.int64]
    contexts: tuple[Context, ...]
    counts: Counts

    def context_of(self, index: int) -> Context:
        """The cluster and batch of a candidate."""
        return self.contexts[int(self.variant[index])]


def search_space(spec: Spec, profile: Profile, choice: FeatureChoice, nominal: Context) -> Searched:
    """All candidates of a spec over its cards and batches.

    Raises
    ------
    SpecError
        if a pinned axis has a value that can't exist.
    """
    parts: list[Candidates] = []
    swept: list[Sweep] = []
    variants: list[npt.NDArray[np.int64]] = []
    contexts = tuple(_variants(spec, profile, choice, nominal))
    enumerated, too_big = 0, 0
    rejected: dict[str, int] = {}
    for number, context in enumerate(contexts):
        candidates = enumerate_candidates(spec.search, context, profile, choice)
        enumerated += len(candidates)
        verdict = judge(candidates, context.facts, spec.search.target)
        for name, count in verdict.rejected.items():
            rejected[name] = rejected.get(name, 0) + count
        legal = candidates.take(np.flatnonzero(verdict.legal))
        table = sweep(legal, context)
        fits = np.flatnonzero(np.isfinite(table.repaired_s)) if len(legal) else np.zeros(0, dtype=np.int64)
        too_big += len(legal) - len(fits)
        parts.append(legal.take(fits))
        swept.append(_take(table, fits))
        variants.append(np.full(len(fits), number))
    counts = Counts(
        enumerated=enumerated, rejected=dict(sorted(rejected.items(), key=lambda i: -i[1])), too_big=too_big
    )
    return Searched(concatenate(parts), _join(swept), np.concatenate(variants), contexts, counts)


def enumerate_candidates(search: SearchSpec, context: Context, profile: Profile, choice: FeatureChoice) -> Candidates:
    """Every candidate of one context before rules."""
    space = default_space(
        context.model,
        context.world,
        profile.ranks_per_node,
        context.seq_length,
        context.global_batch,
        choice.switches,
    )
    try:
        space = restrict(space, search)
    except ValueError as error:
        raise SpecError(f"an axis has a value that does not exist: {error}", path="/search/fix") from error
    found = enumerate_space(space, world=context.world, global_batch=context.global_batch, moe=context.model.is_moe)
    keep = np.ones(len(found), dtype=bool)
    for axis in ("dp", "etp"):
        values = getattr(found, axis)
        if axis in search.fix:
            keep &= values == int(search.fix[axis])
        if axis in search.allow:
            keep &= np.isin(values, [int(v) for v in search.allow[axis]])
        if axis in search.forbid:
            keep &= ~np.isin(values, [int(v) for v in search.forbid[axis]])
    return found.take(np.flatnonzero(keep))


def _variants(spec: Spec, profile: Profile, choice: FeatureChoice, nominal: Context) -> list[Context]:
    """The nominal context and, where the spec allows, other card counts and batches near it."""
    cards = (
        _card_counts(nominal.num_npus, profile.npus_per_node) if spec.cluster.use == "at_most" else [nominal.num_npus]
    )
    batches = _batches(spec.training.global_batch_size.value, spec.training.global_batch_size.tolerance_pct)
    found = []
    for count in cards:
        for batch in batches:
            if (count, batch) == (nominal.num_npus, nominal.global_batch):
                found.append(nominal)
            else:
                found.append(variant(spec, profile, choice, count, batch))
    return found


def variant(spec: Spec, profile: Profile, choice: FeatureChoice, num_npus: int, batch: int) -> Context:
    """The context of the same spec on another number of cards or with another batch."""
    return build_context(
        spec.model,
        spec.cluster if spec.cluster.blocks is not None else replace_cards(spec, num_npus),
        spec.training,
        features=choice.on,
        target=spec.search.target,
        profile=profile,
        num_npus=num_npus,
        memory_limit_gib=spec.search.memory_limit_gib,
        host_memory_reserved_gib=spec.search.host_memory_reserved_gib,
        global_batch=batch,
    )


def replace_cards(spec: Spec, num_npus: int):  # type: ignore[no-untyped-def]
    """The cluster with another number of cards, none spare."""
    return spec.cluster.model_copy(update={"num_npus": num_npus, "spare_npus": 0})


def _card_counts(most: int, per_node: int) -> list[int]:
    """Card counts worth a look under `at_most`: all, and fewer whole nodes with many divisors, down to 85 %."""
    nodes = most // per_node
    counts = [n for n in range(nodes, max(0, int(nodes * 0.85) - 1), -1) if n > 0]
    ranked = sorted(counts, key=lambda n: (-_smoothness(n), -n))[:3]
    return sorted({most, *(n * per_node for n in ranked)}, reverse=True)


def _batches(value: int, tolerance_pct: float) -> list[int]:
    """The batch, and those near it within tolerance that divide by most."""
    if tolerance_pct <= 0.0:
        return [value]
    low, high = int(np.ceil(value * (1 - tolerance_pct / 100))), int(value * (1 + tolerance_pct / 100))
    near = sorted(range(low, high + 1), key=lambda b: (-_smoothness(b), abs(b - value)))[:3]
    return sorted({value, *near}, key=lambda b: (b != value, b))


def _smoothness(number: int) -> int:
    """How often 2 divides a number, threes counting less: the more, the more layouts divide it."""
    score = 0
    while number % 2 == 0 and number:
        number //= 2
        score += 2
    while number % 3 == 0 and number:
        number //= 3
        score += 1
    return score


def _take(table: Sweep, index: npt.NDArray[np.int64]) -> Sweep:
    names = ("step_time_s", "bound_s", "memory_bytes", "least_bytes", "recomputed_bytes", "repaired_s")
    return replace(
        table,
        **{name: getattr(table, name)[index] for name in names},
        parts={k: v[index] for k, v in table.parts.items()},
    )


def _join(tables: Sequence[Sweep]) -> Sweep:
    if len(tables) == 1:
        return tables[0]
    names = ("step_time_s", "bound_s", "memory_bytes", "least_bytes", "recomputed_bytes", "repaired_s")
    keys = next((t.parts.keys() for t in tables if t.parts), ())
    return Sweep(
        **{name: np.concatenate([getattr(t, name) for t in tables]) for name in names},
        parts={k: np.concatenate([t.parts[k] for t in tables if t.parts]) for k in keys},
    )
