"""Layouts of the update: the search of pre-training, on the trainers' cards and on packs of samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, gcd
from typing import TYPE_CHECKING, Any, Final

from autodeploy.errors import SpecError
from autodeploy.evaluation.inputs.build_context import device_of, healthy_npus, profile_of
from autodeploy.evaluation.steps.one_strategy import candidate_for
from autodeploy.post_training import InfeasibleRlError, update_part
from autodeploy.ranking.fit_probability import memory_spread_of, p_fits
from autodeploy.rl_planning.axes import values_left
from autodeploy.rl_planning.launchable import Launchable
from autodeploy.rl_planning.one_update import context_of_update
from autodeploy.specs.training import BatchSize, TrainingSpec
from autodeploy.stack.frameworks import UNRESTRICTED
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autodeploy.post_training import UpdatePart
    from autodeploy.specs.planset import PlanSet
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile

SEARCH: Final[dict[str, Any]] = {"effort": 0.1, "top_k": 3, "gap": 0.2, "risk": "neutral", "distinct": "strategies"}
"""Of the update's layouts: the best few, as another plan may leave more memory to generation."""
BOUND_GAP: Final = 0.05  # at which a search for a bound alone ends
ROOMY: Final = 0.8
"""Of a device's memory, in which layouts are searched once more: they surely fit, and leave room for generation."""
ROUND: Final = 1024  # tokens that packs are whole multiples of
SHARE: Final = 8  # of an update's packs, by which the batch may be padded so that many degrees divide it


@dataclass(frozen=True)
class Update:
    """A layout of the update on some cards: its strategy, the packs that it trains on and what it takes.

    p_fits : probability that training stays within a device's memory.
    """

    strategy: Strategy
    pack_tokens: int | None
    part: UpdatePart
    p_fits: float

    @property
    def npus(self) -> int:
        """Cards that train."""
        return self.part.npus


@dataclass(frozen=True)
class Searched:
    """What a search on some cards found. gap : by which its best may be slower than any; None: unknown."""

    npus: int
    strategies: tuple[Strategy, ...]
    gap: float | None
    enumerated: int
    why: tuple[str, ...] = ()


def packs(spec: Spec) -> list[int | None]:
    """Tokens of a pack: just the longest sample, and two of them."""
    longest = ROUND * ceil(spec.training.seq_length / ROUND)
    return [int(value) for value in values_left(spec.search, "rl.pack_tokens", [longest, 2 * longest])]


def update_spec(spec: Spec, npus: int | None = None, *, launched: bool = True) -> Spec:
    """An update as a spec of pre-training: packs as sequences, as many as the samples of an update fill.

    Parameters
    ----------
    npus : cards that train; absent: all of the spec's. launched : only on replicas that the target can launch.

    Attention stays within a pack here and within a sample in what is predicted; so layouts are chosen with a little too
    much of it. The batch is rounded up, so that it divides evenly in many ways.
    """
    rl = spec.training.rl
    assert rl is not None
    pack_tokens = packs(spec)[0] or spec.training.seq_length
    npus = healthy_npus(profile_of(spec.cluster), spec.cluster) if npus is None else npus
    dies = 48 * npus
    samples = rl.samples // rl.updates_per_step
    tokens = samples * (rl.prompt_length.mean_tokens + rl.response_length.distribution().mean)
    rows = ceil(tokens / pack_tokens)
    unit = max(d for d in range(1, max(1, rows // SHARE) + 1) if gcd(d, dies) == d)
    training = TrainingSpec(
        seq_length=pack_tokens,
        global_batch_size=BatchSize(value=unit * ceil(rows / unit)),
        precision=spec.training.precision,
        routing_imbalance=spec.training.routing_imbalance,
        routing_imbalance_peak=spec.training.routing_imbalance_peak,
        router=spec.training.router,
        expert_load_file=spec.training.expert_load_file,
        expert_load_sha256=spec.training.expert_load_sha256,
        norm_precision=spec.training.norm_precision,
    )
    own = {
        name: {axis: value for axis, value in getattr(spec.search, name).items() if not axis.startswith("rl.")}
        for name in ("fix", "allow", "forbid")
    }
    if not any("micro_batch_size" in axes for axes in own.values()):
        own["fix"]["micro_batch_size"] = 1  # a pack holds several samples already
    if launched:
        _allow_launched(spec, npus, own["allow"])
    effort = "default" if spec.search.effort == "deep" else SEARCH["effort"]
    search = spec.search.model_copy(update={**SEARCH, **own, "effort": effort, "objective": "step_time"})
    cluster = spec.cluster.model_copy(update={"num_npus": npus, "blocks": None, "spare_npus": 0, "use": "exactly"})
    changes = {"training": training, "search": search, "cluster": cluster, "strategy": None, "run": None, "doubts": ()}
    return spec.model_copy(update=changes)


def _allow_launched(spec: Spec, npus: int, allow: dict[str, Any]) -> None:
    """Leaves the data-parallel sizes that the target launches; where none is left, those that the spec allows."""
    launched = Launchable(spec, profile_of(spec.cluster), npus, {}).replicas(npus)
    allowed = tuple(dp for dp in allow.get("dp", launched) if dp in launched)
    if allowed and launched[-1] != len(launched):
        allow["dp"] = allowed


def update_alone(spec: Spec, strategy: Strategy) -> Spec:
    """The update of a strategy as a spec of pre-training, on the cards that train."""
    cards = healthy_npus(profile_of(spec.cluster), spec.cluster)
    generating = 0 if strategy.rl is None else strategy.rl.generation_npus or 0
    found = update_spec(spec, max(1, cards - generating))
    return found.model_copy(update={"strategy": strategy.model_copy(update={"rl": None})})


def search_updates(spec: Spec, npus: int, plan: Callable[[Spec], PlanSet]) -> Searched:
    """The best layouts of the update on `npus` cards."""
    update = update_spec(spec, npus)
    profile = profile_of(spec.cluster)
    usable_gib = device_of(profile, spec.cluster).usable_hbm_bytes / GIB
    limit = ROOMY * (spec.search.memory_limit_gib or usable_gib)
    roomy = update.model_copy(update={"search": update.search.model_copy(update={"memory_limit_gib": limit})})
    try:
        found = plan(update)
        plans = (*found.plans, *(plan(roomy).plans if found.plans else ()))
    except SpecError as error:
        return Searched(npus, (), None, 0, tuple(each.message for each in error.errors))
    why = () if found.infeasible is None else found.infeasible.binding_rules
    strategies = tuple(each.strategy.model_copy(update={"dp": None}) for each in plans)
    return Searched(npus, strategies, found.optimality.gap, found.counts.enumerated, why)


def least_training_s(spec: Spec, profile: Profile, npus: int, plan: Callable[[Spec], PlanSet]) -> float:
    """Seconds that training on `npus` cards takes at least, whether the target can launch it or not.

    The gap of a search is of one update; the other phases of training are taken to share it.
    """
    update = update_spec(spec, npus, launched=False)
    try:
        search = update.search.model_copy(update={"top_k": 1, "gap": BOUND_GAP})
        found = plan(update.model_copy(update={"search": search}))
    except SpecError:
        return 0.0
    if found.optimality.gap is None:
        return 0.0
    anywhere = spec.model_copy(update={"search": spec.search.model_copy(update={"target": UNRESTRICTED})})
    strategies = [each.strategy.model_copy(update={"dp": None}) for each in found.plans]
    free = Launchable(anywhere, profile, npus, {})
    fastest = min((each.part.training_s for each in updates_on(spec, profile, npus, strategies, free, {})), default=0.0)
    return fastest * (1.0 - found.optimality.gap)


def updates_on(
    spec: Spec,
    profile: Profile,
    npus: int,
    strategies: Sequence[Strategy],
    launchable: Launchable,
    refused: dict[str, int],
) -> list[Update]:
    """The update's layouts on `npus` cards, each with each size of packs; what cannot be is counted by its rule."""
    rl, found = spec.training.rl, []
    assert rl is not None
    dies = npus * profile.devices_per_npu
    for strategy in strategies:
        ranks = strategy.tp * strategy.pp * strategy.cp
        if dies % ranks or (strategy.ep > 1 and (dies // strategy.pp) % (strategy.ep * (strategy.etp or 1))):
            refused["update_cards"] = refused.get("update_cards", 0) + 1
            continue
        whole = strategy.model_copy(update={"dp": dies // ranks})
        for pack in packs(spec):
            if not launchable.update(whole, pack, npus):
                continue
            try:
                part = update_part(
                    spec.model, profile, spec.cluster, rl, whole, npus=npus, pack_tokens=pack, features=None
                )
            except SpecError as error:
                rule = error.rule if isinstance(error, InfeasibleRlError) else "update"
                refused[rule] = refused.get(rule, 0) + 1
                continue
            if part.peak_bytes > part.limit_bytes:
                refused["update_memory"] = refused.get("update_memory", 0) + 1
                continue
            found.append(Update(whole, pack, part, _chance(spec, profile, whole, pack, part)))
    return sorted(found, key=lambda each: (each.part.training_s, each.part.peak_bytes))


def _chance(spec: Spec, profile: Profile, strategy: Strategy, pack: int | None, part: UpdatePart) -> float:
    """Probability that an update's peak stays within the memory of a device."""
    context = context_of_update(spec, profile, strategy, pack, npus=part.npus)
    spread = memory_spread_of(candidate_for(context, strategy), context)
    return p_fits(part.peak_bytes, part.limit_bytes, spread)
