"""Layouts of the update: the search of pre-training, on the trainers' cards and on packs of samples."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, gcd
from typing import TYPE_CHECKING, Any, Final, Protocol

from autodeploy.costs.inputs.build_context import device_of, healthy_npus, profile_of
from autodeploy.costs.post_training.samples import InfeasibleRlError, lengths_of, software_of
from autodeploy.costs.post_training.update import update_parts
from autodeploy.kit.errors import SpecError
from autodeploy.search.post_training.generation_layouts import values_left
from autodeploy.search.post_training.launchable import Launchable
from autodeploy.search.ranking.uncertainty import memory_spread_of, p_fits, p_starts
from autodeploy.specs.training import BatchSize, TrainingSpec
from cost_models.hbm import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.post_training.update import UpdatePart
    from autodeploy.search.ranking.search_result import LayoutsFound
    from autodeploy.specs.planset import Infeasible
    from autodeploy.specs.rl import RlTraining
    from autodeploy.specs.spec import Spec
    from autodeploy.specs.strategy import Strategy
    from hardware_profiles.profile import Profile

SEARCH: Final[dict[str, Any]] = {"effort": "fast", "top_k": 5, "gap": 0.2, "risk": "neutral", "distinct": "strategies"}
"""Of the update's layouts: the best few, as another plan may leave more memory to generation."""
BOUND_GAP: Final = 0.05  # at which a search for a bound alone ends
REDUCED_MEMORY_SHARE: Final = 0.8
"""Of a device's memory, in which layouts are searched once more: they surely fit, and leave room for generation."""
PACK_MULTIPLE_TOKENS: Final = 1024  # tokens that packs are whole multiples of
SHARE: Final = 8  # of an update's packs, by which the batch may be padded so that many degrees divide it


@dataclass(frozen=True)
class Update:
    """A layout of the update on some cards: its strategy, the packs that it trains on and what it takes.

    p_fits : probability that training stays within a device's memory; p_starts : that its first steps do.
    """

    strategy: Strategy
    pack_tokens: int | None
    part: UpdatePart
    p_fits: float
    p_starts: float

    @property
    def npus(self) -> int:
        """Cards that train."""
        return self.part.npus

    @property
    def degrees(self) -> tuple[int, ...]:
        """By which it is another plan for who launches it."""
        own = self.strategy
        return own.tp, own.pp, own.cp, own.ep


@dataclass(frozen=True)
class UpdateLayouts:
    """Result of a search on some cards. gap : by which its best may be slower than any; None: unknown."""

    npus: int
    strategies: tuple[Strategy, ...]
    gap: float | None
    enumerated: int
    why: tuple[str, ...] = ()


def packs(spec: Spec) -> list[int | None]:
    """Tokens of a pack: just the longest sample, and two of them."""
    longest = PACK_MULTIPLE_TOKENS * ceil(spec.training.seq_length / PACK_MULTIPLE_TOKENS)
    return [int(value) for value in values_left(spec.search, "rl.pack_tokens", [longest, 2 * longest])]


def update_spec(spec: Spec, npus: int | None = None, *, pack_tokens: int | None = None, launched: bool = True) -> Spec:
    """An update as a spec of pre-training: packs as sequences, as many as the samples of an update fill.

    npus : cards that train; absent: all of the spec's. pack_tokens : of a pack; absent: the shortest. launched : only
    on replicas that the target can launch.

    Attention stays within a sample, as in what is predicted. The batch is rounded up, so that it divides evenly in many
    ways.
    """
    rl = spec.training.rl
    assert rl is not None
    pack_tokens = pack_tokens or packs(spec)[0] or spec.training.seq_length
    npus = healthy_npus(profile_of(spec.cluster), spec.cluster) if npus is None else npus
    dies = 48 * npus
    samples = rl.samples // rl.updates_per_step
    tokens = samples * (rl.prompt_length.mean_tokens + rl.response_length.distribution().mean)
    rows = ceil(tokens / pack_tokens)
    unit = max(d for d in range(1, max(1, rows // SHARE) + 1) if gcd(d, dies) == d)
    training = TrainingSpec(
        seq_length=pack_tokens,
        sequence_length_histogram=_samples(rl, pack_tokens),
        global_batch_size=BatchSize(value=unit * ceil(rows / unit)),
        precision=spec.training.precision,
        norm_precision=spec.training.norm_precision,
        **spec.training.routed,
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
    changes = {
        "training": training,
        "search": search,
        "cluster": cluster,
        "strategy": None,
        "run": None,
        "unmodelled": (),
        "doubts": (),
    }
    return spec.model_copy(update=changes)


def _samples(rl: RlTraining, longest: int) -> dict[str, float]:
    """Share of samples by their length, none of them beyond `longest`."""
    lengths, shares = lengths_of(rl), dict[str, float]()
    for tokens, share in zip(lengths.tokens.tolist(), lengths.share.tolist(), strict=True):
        name = str(min(longest, max(1, round(tokens + rl.prompt_length.mean_tokens))))
        shares[name] = shares.get(name, 0.0) + share
    return shares


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
    spec_of_update = update_spec(spec, max(1, cards - generating))
    return spec_of_update.model_copy(update={"strategy": strategy.model_copy(update={"rl": None})})


class LayoutSearch(Protocol):
    """Searches layouts of an update, given as a spec of pre-training.

    Raises SpecError if the spec asks for something that can't be planned.
    """

    def layouts(self, spec: Spec) -> LayoutsFound:
        """The best of them."""

    def why_none(self, spec: Spec) -> Infeasible | None:
        """Rules that refuse all of them."""


def search_updates(spec: Spec, npus: int, search: LayoutSearch, *, shared: bool) -> UpdateLayouts:
    """The best layouts of the update on `npus` cards for each size of packs, by the risks of the spec.

    A longer pack takes more memory: what is best for a shorter one may not hold it. shared : generation takes what
    training leaves of a device; then more layouts, that leave room. The gap is that of the shortest packs. Also
    where no risk counts, layouts that fit surely are looked for: the fastest step may be one that leaves room.
    """
    profile = profile_of(spec.cluster)
    usable_gib = device_of(profile, spec.cluster).usable_hbm_bytes / GIB
    limit = REDUCED_MEMORY_SHARE * (spec.search.memory_limit_gib or usable_gib)

    def found(pack_tokens: int | None, **changes: Any) -> LayoutsFound:
        update = update_spec(spec, npus, pack_tokens=pack_tokens)
        return search.layouts(update.model_copy(update={"search": update.search.model_copy(update=changes)}))

    try:
        averse = spec.search.risk_terms.model_copy(update={"rule": "averse"})
        layouts, *longer = (found(pack, risk=averse) for pack in packs(spec))
        roomy = (found(None, memory_limit_gib=limit),) if shared and layouts.strategies else ()
    except SpecError as error:
        return UpdateLayouts(npus, (), None, 0, tuple(each.message for each in error.errors))
    strategies = tuple(_of_any_size(each) for one in (layouts, *longer, *roomy) for each in one.strategies)
    return UpdateLayouts(npus, strategies, layouts.gap, layouts.enumerated)


def _of_any_size(strategy: Strategy) -> Strategy:
    """A strategy on as many replicas as the cards give."""
    return strategy.model_copy(update={"dp": None})


def least_training_s(spec: Spec, profile: Profile, npus: int, search: LayoutSearch) -> float:
    """Seconds that training on `npus` cards takes at least, whether the target can launch it or not.

    The gap of a search is of one update; the other phases of training are taken to share it. Whether all phases fit
    where the update does is left open: what holds of a layout without room holds of the others.
    """
    update = update_spec(spec, npus, launched=False)
    try:
        asked = update.search.model_copy(update={"top_k": 1, "gap": BOUND_GAP})
        layouts = search.layouts(update.model_copy(update={"search": asked}))
    except SpecError:
        return 0.0
    if layouts.gap is None:
        return 0.0
    each_pack = [(strategy, pack) for strategy in layouts.strategies for pack in packs(spec)]
    parts = predicted(spec, profile, npus, each_pack, within_memory=False)
    fastest = min((part.training_s for part in parts if not isinstance(part, SpecError)), default=0.0)
    return fastest * (1.0 - layouts.gap)


def predicted(
    spec: Spec, profile: Profile, npus: int, asked: Sequence[tuple[Strategy, int | None]], *, within_memory: bool
) -> list[UpdatePart | SpecError]:
    """`update_parts` of a spec's model and cluster."""
    rl = spec.training.rl
    assert rl is not None
    return update_parts(
        *(spec.model, profile, spec.cluster, rl, asked),
        npus=npus,
        software=software_of(spec, profile.vendor),
        routed=spec.training,
        within_memory=within_memory,
    )


@dataclass
class Updates:
    """Layouts of the update on any number of cards, each predicted once.

    refused : what cannot be, counted by its rule.
    """

    spec: Spec
    profile: Profile
    launchable: Launchable
    refused: dict[str, int]
    _known: dict[tuple[str, int | None, int], Update | str] = field(default_factory=dict)

    def on(self, npus: int, strategies: Sequence[Strategy]) -> list[Update]:
        """The strategies on `npus` cards, each with each size of packs, the fastest first."""
        asked: list[tuple[Strategy, int | None]] = []
        dies = npus * self.profile.devices_per_npu
        for strategy in strategies:
            ranks = strategy.tp * strategy.pp * strategy.cp
            if dies % ranks or (strategy.ep > 1 and (dies // strategy.pp) % (strategy.ep * (strategy.etp or 1))):
                self._refuse("update_cards")
                continue
            whole = strategy.model_copy(update={"dp": dies // ranks})
            asked += [(whole, pack) for pack in packs(self.spec) if self.launchable.update(whole, pack, npus)]
        updates = []
        for each in self._updates(asked, npus):
            if isinstance(each, str):
                self._refuse(each)
            else:
                updates.append(each)
        return sorted(updates, key=lambda each: (each.part.training_s, each.part.peak_bytes))

    def _refuse(self, rule: str) -> None:
        self.refused[rule] = self.refused.get(rule, 0) + 1

    def _updates(self, asked: Sequence[tuple[Strategy, int | None]], npus: int) -> list[Update | str]:
        """Each of them, or the rule that refuses it."""
        keys = [(strategy.model_dump_json(), pack, npus) for strategy, pack in asked]
        new = {key: each for key, each in zip(keys, asked, strict=True) if key not in self._known}
        self._known |= dict(zip(new, self._predicted(list(new.values()), npus), strict=True))
        return [self._known[key] for key in keys]

    def _predicted(self, asked: Sequence[tuple[Strategy, int | None]], npus: int) -> list[Update | str]:
        parts = predicted(self.spec, self.profile, npus, asked, within_memory=True)
        return [_update(*each, part) for each, part in zip(asked, parts, strict=True)]


def _update(strategy: Strategy, pack: int | None, part: UpdatePart | SpecError) -> Update | str:
    """A part that fits with the probability that it does, or the rule that refuses it."""
    if isinstance(part, SpecError):
        return part.rule if isinstance(part, InfeasibleRlError) else "update"
    if part.peak_bytes > part.limit_bytes:
        return "update_memory"
    spread = memory_spread_of(part.trained.candidate, part.trained.context)
    peak_bytes, limit_bytes, moe = part.peak_bytes, part.limit_bytes, part.trained.context.model.is_moe
    fits, starts = p_fits(peak_bytes, limit_bytes, spread), p_starts(peak_bytes, limit_bytes, spread, moe=moe)
    return Update(strategy, pack, part, fits, starts)


def undominated(updates: Sequence[Update]) -> list[Update]:
    """Updates, the fastest first, but those that another one of their degrees beats in time, P(fits) and bytes left."""
    kept: list[Update] = []
    for update in updates:
        rivals = (each for each in kept if each.degrees == update.degrees and each.p_fits >= update.p_fits)
        if all(each.part.left_bytes(()) > update.part.left_bytes(()) for each in rivals):
            kept.append(update)
    return kept
