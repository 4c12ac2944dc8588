"""A strategy of somebody else's cards and batch on the spec's own: as it is, or with the nearest change that starts."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, islice, product
from math import log2
from typing import TYPE_CHECKING, Final

from autodeploy.costs.inputs.build_context import spec_context
from autodeploy.costs.steps.one_strategy import as_candidate, estimated, facts_of_placement
from autodeploy.kit.errors import SpecError
from autodeploy.search.ranking.levelled_layers import levelled
from autodeploy.search.ranking.one_strategy import described
from autodeploy.search.ranking.plans import fits
from autodeploy.space.candidates import DISPATCHERS, concatenate
from autodeploy.space.feature_choice import launchable_features
from autodeploy.space.rules import broken_rules, launchable
from autodeploy.specs.derived_fields import of_launch
from autodeploy.specs.strategy import ChoiceKey, Recompute, Strategy
from autodeploy.stack.features import FEATURES
from autodeploy.stack.memory_choices import SWAPPED
from cost_models.schedule import kinds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.costs.inputs.context import Context
    from autodeploy.search.ranking.plans import Identity
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.spec import Spec
    from hardware_profiles.profile import Profile

# Predictions that are made until one fits, and knobs that are turned at once at most.
MOST_PREDICTED = 16
MOST_CHANGED = 3
STAGES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
FULL: Final = "full"


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The plan, and what had to change, such as `pp: 8 -> 16`; empty where nothing had to."""

    plan: Plan
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Turned:
    """A strategy with some knobs turned: in words, how many, and how far as a sum of logarithms."""

    strategy: Strategy
    changes: tuple[str, ...]
    far: tuple[int, float]


def launched_features(features: frozenset[str], spec: Spec, profile: Profile) -> frozenset[str]:
    """Those of them that the spec's target launches on these chips."""
    launchable = launchable_features(spec.search.release(profile.vendor))
    return frozenset(
        name
        for name in features
        if name not in FEATURES
        or (
            name in launchable
            and not {name, FEATURES[name].mechanism} & set(profile.lacks)
            and profile.vendor in (FEATURES[name].vendors or (profile.vendor,))
        )
    )


def moved(
    strategy: Strategy, features: frozenset[str], context: Context, spec: Spec, profile: Profile, identity: Identity
) -> Adaptation | None:
    """The strategy on the cards and the batch of a context, with the fewest changes that start and fit.

    Degrees, micro batch, schedule and memory choices stay, data parallelism follows. Where that does not divide, is
    refused by the target or does not fit, the pipeline, then recomputation, the dispatcher, experts, tensor parallelism
    and the micro batch give way, one alone before two together. None where no such change helps.

    features : those that were on; what the spec asks of its own plans does not bind this one.
    """
    on = launched_features(features, spec, profile)
    dropped = [name for name in strategy.features if name not in on]
    own = strategy.model_copy(
        update={
            "features": tuple(name for name in strategy.features if name in on),
            "dp": None,
            **{name: False for name in dropped if name in Strategy.model_fields},
        }
    )
    own_context = spec_context(
        spec,
        profile,
        on,
        num_npus=context.num_npus,
        global_batch=context.global_batch,
        distributed_optimizer=strategy.distributed_optimizer,
    )
    dividing = ([each for each in some if _divides(each.strategy, own_context)] for some in _turned(own, own_context))
    starting = (each for some in dividing for each in _starting(some, own_context, spec))
    for turned in islice(starting, MOST_PREDICTED):
        if (plan := _plan(turned.strategy, own_context, spec, identity)) is not None:
            return Adaptation(plan, (*turned.changes, *(f"features: -{name}" for name in dropped)))
    return None


def _turned(strategy: Strategy, context: Context) -> Iterator[list[_Turned]]:
    """The strategy, then its changes: of one knob, of two, and so on, each time those first that turn less."""
    yield [_Turned(strategy, (), (0, 0.0))]
    layers, total = context.model.num_hidden_layers, context.model.n_routed_experts or 0
    experts = tuple(size for size in range(1, total + 1) if total % size == 0)
    knobs = (
        _pipelines(strategy, layers),
        _recomputed(strategy),
        _dispatchers(strategy) if total else (),
        _sizes(strategy, "ep", experts),
        _sizes(strategy, "tp", (1, 2, 4, 8, 16)),
        _sizes(strategy, "micro_batch_size", (1, 2)),
    )
    changes = [[(option, _fields(strategy, option.strategy)) for option in knob] for knob in knobs]
    for count in range(1, MOST_CHANGED + 1):
        turned = []
        for some in combinations(changes, count):
            for changed in product(*some):
                fields = {name: value for _, changed_fields in changed for name, value in changed_fields.items()}
                words = tuple(word for option, _ in changed for word in option.changes)
                far = count, sum(option.far[1] for option, _ in changed)
                turned.append(_Turned(strategy.model_copy(update=fields), words, far))
        yield sorted(turned, key=lambda each: each.far)


def _fields(before: Strategy, after: Strategy) -> dict[str, object]:
    """Fields of the strategy that differ."""
    return {
        name: getattr(after, name) for name in Strategy.model_fields if getattr(after, name) != getattr(before, name)
    }


def _pipelines(strategy: Strategy, layers: int) -> list[_Turned]:
    """Other numbers of stages, and the plain schedule of as many chunks for one that pairs."""
    turned = [_with_stages(strategy, pp, layers) for pp in STAGES if pp != strategy.pp and pp <= layers + 2]
    kind = kinds.schedule(strategy.schedule)
    if kind.pairs:
        chunks = strategy.vpp if kind.chunks is None else kind.chunks
        plain = kinds.plain(chunks)
        changed = strategy.model_copy(update={"schedule": plain.name, "vpp": chunks, "layers_per_stage": None})
        turned.append(_Turned(changed, (f"schedule: {kind.name} -> {plain.name}",), (1, 1.0)))
    return turned


def _with_stages(strategy: Strategy, pp: int, layers: int) -> _Turned:
    """Another number of stages, of at most as many chunks as there are layers for."""
    kind = kinds.schedule(strategy.schedule)
    change: dict[str, object] = {"pp": pp, "layers_per_stage": None, "swap_per_stage": None}
    words = [f"pp: {strategy.pp} -> {pp}"]
    if kind.chunks is None:
        vpp = 1 if pp == 1 else max(1, min(strategy.vpp, layers // pp))
        other = kind if kind.has_chunks(vpp) and pp > 1 else kinds.plain(vpp)
        change |= {"vpp": vpp, "schedule": other.name}
        if vpp != strategy.vpp:
            words.append(f"vpp: {strategy.vpp} -> {vpp}")
    elif pp == 1:
        change |= {"vpp": 1, "schedule": kinds.plain(1).name}
    recompute = strategy.recompute
    if recompute.per_stage is not None or recompute.num_layers_per_stage is not None:
        change["recompute"] = Recompute(granularity=recompute.granularity, modules=recompute.modules)
    return _Turned(strategy.model_copy(update=change), tuple(words), (1, abs(log2(pp / strategy.pp))))


def _recomputed(strategy: Strategy) -> list[_Turned]:
    """Every layer recomputed and nothing swapped."""
    every = Recompute(granularity=FULL)
    if strategy.recompute == every and not strategy.swap and not strategy.swap_per_stage:
        return []
    changed = strategy.model_copy(update={"recompute": every, "swap": (), "swap_per_stage": None})
    return [_Turned(changed, (f"recompute: {strategy.recompute.granularity} -> {FULL}",), (1, 1.0))]


def _dispatchers(strategy: Strategy) -> list[_Turned]:
    own = strategy.moe_dispatcher or DISPATCHERS[0]
    return [
        _Turned(strategy.model_copy(update={"moe_dispatcher": name}), (f"moe_dispatcher: {own} -> {name}",), (1, 1.0))
        for name in DISPATCHERS
        if name != own
    ]


def _sizes(strategy: Strategy, name: str, sizes: tuple[int, ...]) -> list[_Turned]:
    """Other sizes of that name; a micro batch only becomes smaller."""
    own = int(getattr(strategy, name))
    turned = []
    for size in sizes:
        if size == own or (name == "micro_batch_size" and size > own):
            continue
        changed = of_launch(strategy, strategy.model_copy(update={name: size}))
        # Tensor parallelism and experts are what a recipe is about: they give way last.
        turned.append(_Turned(changed, (f"{name}: {own} -> {size}",), (1, 2.0 + abs(log2(size / own)))))
    return turned


def _divides(strategy: Strategy, context: Context) -> bool:
    """Whether its degrees divide the ranks and the batch, and its memory choices are launched."""
    ranks, cut = context.world, strategy.tp * strategy.pp * strategy.cp
    return ranks % cut == 0 and context.global_batch % (strategy.micro_batch_size * (ranks // cut)) == 0


def _starting(turned: list[_Turned], context: Context, spec: Spec) -> Iterator[_Turned]:
    """Those that the target launches, in their order; all are held against its rules together."""
    if not turned:
        return
    target = spec.search.target
    candidates = [as_candidate(context, each.strategy, possible=False) for each in turned]
    broken = broken_rules(concatenate(candidates), context.facts, target)
    for each, candidate, rules in zip(turned, candidates, broken, strict=True):
        if any(rule.is_told for rule in rules) or not _choices(each.strategy) <= launchable(
            candidate, context.facts, target
        ):
            continue
        placed = facts_of_placement(each.strategy)
        again = broken_rules(candidate, {**context.facts, **placed}, target)[0] if placed else ()
        if not any(rule.is_told for rule in again):
            yield each


def _choices(strategy: Strategy) -> frozenset[str]:
    """Memory choices that it uses, by their names."""
    recompute = strategy.recompute
    named: set[str] = set(recompute.modules) | ({FULL} if recompute.granularity == FULL else set())
    named |= {ChoiceKey.of(name).name for stage in recompute.per_stage or () for name in stage}
    swapped = set(strategy.swap) | {
        ChoiceKey.of(name).name for stage in strategy.swap_per_stage or () for name in stage
    }
    return frozenset(named | {SWAPPED[name].name for name in swapped if name in SWAPPED})


def _plan(strategy: Strategy, context: Context, spec: Spec, identity: Identity) -> Plan | None:
    """The plan of a strategy; None where it can't be simulated or does not fit."""
    try:
        strategy = levelled(strategy, context)
        estimate = estimated(strategy, context)
        return described(estimate, strategy, spec, identity) if fits(estimate.estimate, estimate.context) else None
    except SpecError:
        return None
