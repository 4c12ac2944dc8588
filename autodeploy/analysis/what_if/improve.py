"""improve(launch): the best single changes of a launch, each predicted, and which keep its checkpoints usable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from autodeploy.analysis.ablation.feature_ablation import active_features
from autodeploy.analysis.launch_checks.launch import best_of_short_search
from autodeploy.analysis.launch_checks.launch_check import MODULES
from autodeploy.formats.megatron.launch import flag_changes
from autodeploy.kit.errors import SpecError
from autodeploy.kit.version import ENGINE_VERSION
from autodeploy.specs.answers import GainAt, Improvement, ImproveReport
from autodeploy.specs.derived_fields import OPTIMIZER_MEMORY, of_launch
from autodeploy.specs.search import RL_AXES, value_of
from autodeploy.specs.software import SoftwareSpec, run_of, software_for, stack_for
from autodeploy.specs.spec import Spec, no_strategy, spec_hash
from autodeploy.specs.strategy import Recompute
from autodeploy.stack.features import FEATURES
from autodeploy.stack.frameworks import post_trainers
from autodeploy.stack.host import CPU_KERNELS, HostSoftware
from cost_models.schedule import kinds
from hardware_profiles.loader import load_profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.search.planner import LaunchRules, Planner
    from autodeploy.specs.planset import Plan
    from autodeploy.specs.rl import GenerationLayout, Offload, Placement, RlStrategy
    from autodeploy.specs.strategy import Strategy
    from autodeploy.stack.software import Stack


BEST_TASK_QUEUE: Final = 2
THREADS_A_RANK: Final = 8  # of the optimizer, of the 20 to 24 cores that a device has


# One change of a launched strategy.
@dataclass(frozen=True, slots=True)
class Neighbour:
    """One change. Changes of one kind replace each other.

    features : what it switches on beside the fields. places : layers, recomputation and swap are to be chosen anew.
    software : facts of the stack that are otherwise, by "section.name".
    """

    name: str
    kind: str
    strategy: Strategy
    features: frozenset[str] = frozenset()
    places: bool = False
    software: tuple[tuple[str, str], ...] = ()


# Launches of post-training that generate in another way, one change away.
FRACTIONS: Final = (0.6, 0.75, 0.9)  # of a device's memory, that an engine takes
OFFLOADS: Final[tuple[tuple[Offload, ...], ...]] = (
    (),
    ("optimizer",),
    ("optimizer", "gradients"),
    ("optimizer", "gradients", "parameters"),
)


def generation_neighbours(launched: Strategy, cards: int, *, off_policy: bool = False) -> Iterator[Neighbour]:
    """Every way of generating that is one change away, in a fixed order; none of a launch that only trains.

    cards : that train and generate. off_policy : also ways to train on responses of older policies, which a launch that
        does so already may change, too.
    """
    if launched.rl is None:
        return
    others = _placements(launched.rl, cards, off_policy=off_policy)
    for name, kind, how in (*_engines(launched.rl), *_offloads(launched.rl), *others):
        yield Neighbour(name, kind, launched.model_copy(update={"rl": how}))


def _engines(how: RlStrategy) -> Iterator[tuple[str, str, RlStrategy]]:
    """Mode, degrees and memory of the engine on the same cards."""
    layout = how.generation

    def changed(name: str, **fields: Any) -> tuple[str, str, RlStrategy]:
        (kind,) = [each for each in fields if each not in ("dp", "ep")]
        return name, f"rl.generation.{kind}", how.model_copy(update={"generation": layout.model_copy(update=fields)})

    for mode in ("graph", "eager"):
        if mode != layout.mode:
            yield changed(f"rl.generation.mode:{mode}", mode=mode)
    for tp in (2 * layout.tp, *([layout.tp // 2] if layout.tp % 2 == 0 else [])):
        degrees = _with_tensor_ranks(layout, tp)
        if degrees is not None:
            yield changed(f"rl.generation.tp:{tp}", **degrees)
    for fraction in FRACTIONS:
        if fraction != layout.memory_fraction:
            yield changed(f"rl.generation.memory_fraction:{fraction:g}", memory_fraction=fraction)
    if layout.max_num_seqs is not None:
        for most in (2 * layout.max_num_seqs, layout.max_num_seqs // 2):
            if most:
                yield changed(f"rl.generation.max_num_seqs:{most}", max_num_seqs=most)


def _with_tensor_ranks(layout: GenerationLayout, tp: int) -> dict[str, int] | None:
    """Degrees with other tensor parallelism over the same ranks of a replica; None where they don't divide."""
    whole = layout.tp * layout.dp
    if layout.dp == 1 and layout.ep == 1:
        return {"tp": tp}
    if whole % tp:
        return None
    return {"tp": tp, "dp": whole // tp, "ep": whole if layout.ep > 1 else 1}


def _offloads(how: RlStrategy) -> Iterator[tuple[str, str, RlStrategy]]:
    """States that leave the device while it generates, where both share it."""
    if how.placement != "colocated":
        return
    for states in OFFLOADS:
        if set(states) != set(how.offload):
            yield f"rl.offload:{'+'.join(states) or 'none'}", "rl.offload", how.model_copy(update={"offload": states})


def _placements(how: RlStrategy, cards: int, *, off_policy: bool) -> Iterator[tuple[str, str, RlStrategy]]:
    """Generation elsewhere: on the same cards, on half of them in turn, or beside training; other shares of cards."""
    shares = {"colocated": None, "separate": cards // 2, "async": cards // 2}
    names: tuple[Placement, ...] = ("colocated", "separate", "async")
    for placement in names:
        share = how.generation_npus or shares[placement]
        if placement == how.placement or (placement != "colocated" and not share):
            continue
        if placement == "async" and not off_policy:
            continue
        fields: dict[str, Any] = {
            "placement": placement,
            "generation_npus": None if placement == "colocated" else share,
            "staleness": int(placement == "async"),
            "offload": (),
        }
        yield f"rl.placement:{placement}", "rl.placement", how.model_copy(update=fields)
    if how.generation_npus is not None:
        for share in (how.generation_npus // 2, how.generation_npus + (cards - how.generation_npus) // 2):
            if 0 < share < cards and share != how.generation_npus:
                yield (
                    f"rl.generation_npus:{share}",
                    "rl.generation_npus",
                    how.model_copy(update={"generation_npus": share}),
                )


# Strategies that are one change away from another.
OWN_SWITCH = frozenset({"", "field"})  # of features that are on or off, whatever else the document says
# Parts of the document by which memory features are switched.
MEMORY_SWITCHES = frozenset({"recompute", "swap", "attention_swap"})
MEMORY_FEATURES = frozenset(name for name, feature in FEATURES.items() if feature.switch in MEMORY_SWITCHES)


def neighbours(
    plan: Plan,
    launched: Strategy,
    on: frozenset[str],
    rules: LaunchRules,
    *,
    off_policy: bool = False,
    software: HostSoftware = HostSoftware(),  # noqa: B008 - immutable
) -> Iterator[Neighbour]:
    """Every strategy one change away that the launch target has a name for, in a fixed order.

    plan : the launch as predicted. launched : its strategy as written. on : features that it runs with. off_policy : as
        of `generation_neighbours`. software : what the launch's stack asks of the host.
    """
    yield from generation_neighbours(launched, plan.num_npus_used, off_policy=off_policy)
    yield from _host(launched, software)
    yield from _memory(plan, launched, rules)
    yield from _switches(launched, on, rules)
    yield from _sizes(launched)
    yield Neighbour("placement", "placement", _free(launched), MEMORY_FEATURES & rules.features, places=True)
    yield from _degrees(launched, plan, rules)
    yield from _schedules(launched, rules)


def _host(launched: Strategy, software: HostSoftware) -> Iterator[Neighbour]:
    """Defaults of the host that a launch leaves: the level of the task queue, and how Adam runs on its cores."""

    def set_to(name: str, value: str) -> Neighbour:
        return Neighbour(f"{name}:{value}", f"host.{name}", launched, software=((f"host.{name}", value),))

    if software.changing_shapes and software.task_queue < BEST_TASK_QUEUE:
        yield set_to("task_queue", str(BEST_TASK_QUEUE))
    on_host = launched.swap_optimizer or launched.optimizer_offload_fraction is not None
    if on_host and software.updates:
        if software.kernel != CPU_KERNELS[-1]:
            yield set_to("optimizer_kernel", CPU_KERNELS[-1])
        if software.threads < THREADS_A_RANK:
            yield set_to("optimizer_threads", str(THREADS_A_RANK))


def _otherwise(spec: Spec, facts: tuple[tuple[str, str], ...]) -> SoftwareSpec:
    """The software of a launch with these facts otherwise."""
    named = spec.software or SoftwareSpec(stack=_stack_of(spec).name)
    return named.model_copy(update={"overrides": {**named.overrides, **dict(facts)}})


def _stack_of(spec: Spec) -> Stack:
    """The stack that a launch runs on; of no framework that trains by reinforcement, the usual one for it."""
    vendor = load_profile(spec.cluster.profile).vendor
    target, usual = spec.search.target, post_trainers()
    if spec.training.rl is not None and target not in usual:
        target = usual[0]
    return stack_for(spec.software, target, vendor)


def host_of(spec: Spec) -> HostSoftware:
    """The demands of the launch's software on the host."""
    assert spec.strategy is not None
    named = spec.strategy.named_features or frozenset()
    named |= {"swap_optimizer"} if spec.strategy.swap_optimizer else frozenset()
    run = run_of(spec.model, spec.training.precision, spec.strategy, named)
    return software_for(spec.software, _stack_of(spec), run).host.of_strategy(spec.strategy.optimizer_offload_fraction)


def _memory(plan: Plan, launched: Strategy, rules: LaunchRules) -> Iterator[Neighbour]:
    """Less recomputation, and other kinds of it, on the same layers."""

    def recomputed(name: str, wanted: Recompute, *features: str) -> Neighbour:
        return Neighbour(name, "recompute", _with(launched, recompute=wanted), frozenset(features) & rules.features)

    recompute = launched.recompute
    if recompute.granularity == "none":
        return
    yield recomputed("recompute:none", Recompute())
    layers = max(sum(stage.layers) for stage in plan.stages)
    most = min(recompute.num_layers or layers, layers)
    if recompute.granularity == "full" and recompute.per_stage is None and recompute.num_layers_per_stage is None:
        for count in sorted({most // 2, 3 * most // 4, most - 1} - {0, most}):
            yield recomputed(f"recompute_full:{count}", Recompute(granularity="full", num_layers=count))
    if "selective_recompute" in rules.features:
        for name in MODULES:
            if name in rules.memory_choices and recompute.modules != (name,):
                wanted = Recompute(granularity="selective", modules=(name,))  # type: ignore[arg-type]
                yield recomputed(f"recompute:{name}", wanted, "selective_recompute")


def _switches(launched: Strategy, on: frozenset[str], rules: LaunchRules) -> Iterator[Neighbour]:
    """Features that the target has and the launch leaves off."""
    active = {*active_features(launched, on), *on}
    for name, feature in FEATURES.items():
        if feature.switch not in OWN_SWITCH or name in active or name not in rules.features:
            continue
        if name in OPTIMIZER_MEMORY:
            fields = {name: True} if name in type(launched).model_fields else {}
            yield Neighbour(name, "optimizer_memory", _with(launched, **fields), frozenset({name}))
        else:
            yield Neighbour(name, name, launched, frozenset({name}))
    for name in OPTIMIZER_MEMORY:
        if getattr(launched, name, False):
            features = tuple(each for each in launched.features if each != name)
            yield Neighbour(f"{name}:off", "optimizer_memory", _with(launched, **{name: False}, features=features))
    if not launched.distributed_optimizer:
        yield Neighbour("distributed_optimizer", "distributed_optimizer", _with(launched, distributed_optimizer=True))
    if launched.tp > 1 and launched.sequence_parallel is False:
        yield Neighbour("sequence_parallel", "sequence_parallel", _with(launched, sequence_parallel=True))
    if launched.moe_dispatcher is not None:
        for dispatcher in ("alltoall", "alltoall_seq", "allgather", "hierarchical"):
            if dispatcher != launched.moe_dispatcher and (
                dispatcher != "hierarchical" or "hierarchical_a2a" in rules.features
            ):
                changed = _with(launched, moe_dispatcher=dispatcher)
                yield Neighbour(f"moe_dispatcher:{dispatcher}", "moe_dispatcher", changed)


def _sizes(launched: Strategy) -> Iterator[Neighbour]:
    for size in _beside(launched.micro_batch_size):
        yield Neighbour(f"micro_batch_size:{size}", "micro_batch_size", _with(launched, micro_batch_size=size))


def _degrees(launched: Strategy, plan: Plan, rules: LaunchRules) -> Iterator[Neighbour]:
    """One degree doubled or halved; what depends on it is chosen anew."""
    memory = MEMORY_FEATURES & rules.features
    free = _free(launched)
    for axis in ("tp", "pp", "cp", "ep"):
        for value in _beside(getattr(launched, axis)):
            if axis == "ep" and plan.strategy.etp is None:
                continue  # no experts
            changed = _with(free, **{axis: value})
            yield Neighbour(f"{axis}:{value}", axis, of_launch(free, changed), memory, places=True)
    if plan.strategy.etp is not None and launched.tp > 1:
        etp = 1 if plan.strategy.etp != 1 else launched.tp
        yield Neighbour(f"etp:{etp}", "etp", _with(free, etp=etp), memory, places=True)


def _schedules(launched: Strategy, rules: LaunchRules) -> Iterator[Neighbour]:
    """Other schedules of the same stages, and more or fewer virtual stages."""
    if launched.pp == 1:
        return
    memory = MEMORY_FEATURES & rules.features
    chunks = [1, 2, 2 * launched.vpp, *([launched.vpp // 2] if launched.vpp >= 4 else [])]
    ways = [(kinds.plain(vpp).name, vpp) for vpp in chunks]
    for kind in kinds.searched():
        if kind.pairs and (kind.name in rules.features or kind.name not in FEATURES):
            ways.append((kind.name, kind.chunks or max(kind.least_chunks, launched.vpp)))
    for schedule, vpp in dict.fromkeys(ways):
        if (schedule, vpp) == (launched.schedule, launched.vpp):
            continue
        added = frozenset({schedule} & set(FEATURES))
        changed = _with(_free(launched), schedule=schedule, vpp=vpp)
        name = f"schedule:{schedule}" + (f" vpp:{vpp}" if vpp != launched.vpp else "")
        yield Neighbour(name, "schedule", changed, memory | added, places=True)


def _beside(value: int) -> list[int]:
    return [2 * value, *([value // 2] if value % 2 == 0 else [])]


def _free(strategy: Strategy) -> Strategy:
    """The same degrees; where layers are and what they recompute or swap is open."""
    return _with(strategy, layers_per_stage=None, recompute=Recompute(), swap=(), swap_per_stage=None, dp=None)


def _with(strategy: Strategy, **fields: Any) -> Strategy:
    return strategy.model_copy(update=fields)


MAX_SHOWN = 3
WORTH_PCT = 0.1  # a change that brings less is none
SEARCH_LIMIT_S = 20.0
# What decides which shard of a checkpoint is on which rank.
SHARDED_BY = ("tp", "pp", "vpp", "ep", "etp", "distributed_optimizer")
# Optimizer states of another format.
OTHER_STATES = frozenset({"o2_optimizer", "quantized_optimizer"})
DERIVED = ("dp",)


# Changes that are tried as they are written, and with memory choices of their own.
FREED = frozenset({"moe_dispatcher", "micro_batch_size", "sequence_parallel", "distributed_optimizer"})
FEW_MICRO_BATCHES = 4  # a stage; below, filling and draining the pipeline cost a fifth and more
WORTH_TELLING_PCT = 5.0


@dataclass(frozen=True, slots=True)
class _Tried:
    neighbour: Neighbour
    plan: Plan
    gain_pct: float
    keeps: bool
    memory_gain_pct: float = 0.0


def improve(launch: Launch, *, planner: Planner) -> ImproveReport:
    """The three best single changes of a launch, the largest gain first, of each kind of change one.

    A change of degrees or schedule is predicted with layers, recomputation and swap chosen anew, a switch or micro
    batch both as it is written and so; what choosing them anew brings alone is told apart. Only what the target can
    launch and what fits counts. Where the launch itself does not fit, changes that make it fit count at any cost.

    Raises SpecError if the strategy's degrees contradict the cluster, or it can't be modelled.
    """
    spec = launch.spec
    if spec.strategy is None:
        raise no_strategy()
    plan = planner.estimate(spec)
    rules = planner.launch_rules(spec)
    named = spec.strategy.named_features
    on = rules.features if named is None else named
    found = []
    for neighbour in neighbours(
        plan, spec.strategy, on, rules, off_policy=spec.search.asks_off_policy, software=host_of(spec)
    ):
        for each in (neighbour, *_freed(neighbour, rules)):
            predicted = _predicted(each, launch, on, rules, planner)
            if predicted is not None:
                found.append((each, predicted))
    tried = _credited(plan, [(each, predicted) for each, predicted in found if predicted.fits])
    keeping = [each for each in tried if each.keeps]
    return ImproveReport(
        plan=plan,
        improvements=tuple(_improvement(launch, plan, each) for each in _best_of_each_kind(tried)[:MAX_SHOWN]),
        keeping_layout=tuple(_improvement(launch, plan, each) for each in _best_of_each_kind(keeping)[:MAX_SHOWN]),
        tried=len(found),
        batch=_larger_batch(spec, plan, planner),
        fewer_cards=_fewer_cards(spec, plan, planner),
        best_gain_pct=_best_gain_pct(spec, plan, planner),
        broken_rules=tuple(f"{rule.rule}: {rule.text}" for rule in rules.broken),
        spec=spec.model_dump(mode="json"),
        spec_hash=spec_hash(spec),
        engine_version=ENGINE_VERSION,
    )


def _freed(neighbour: Neighbour, rules: LaunchRules) -> Iterator[Neighbour]:
    """The same change with layers, recomputation and swap chosen anew, where it is one that they may hang on."""
    strategy = neighbour.strategy
    if strategy.rl is None and not neighbour.places and (neighbour.kind in FREED or neighbour.kind in FEATURES):
        memory = neighbour.features | (MEMORY_FEATURES & rules.features)
        yield replace(neighbour, strategy=_free(strategy), features=memory, places=True)


def _credited(plan: Plan, found: list[tuple[Neighbour, Plan]]) -> list[_Tried]:
    """Each change with its own gain: one whose memory was chosen anew is compared with the launch after that alone."""
    placed = [after for each, after in found if each.kind == "placement"]
    base = max((plan, *placed), key=_rate) if plan.fits or not placed else max(placed, key=_rate)
    memory = 100.0 * (_rate(base) / _rate(plan) - 1.0)
    tried, seen = [], set[str]()
    for each, after in sorted(found, key=lambda one: one[0].kind != "placement"):
        own = each.kind != "placement" and each.places
        gain = 100.0 * (_rate(after) / _rate(base if own else plan) - 1.0)
        same = after.strategy.model_dump_json()
        if same in seen or (gain < WORTH_PCT and (plan.fits or own)):
            continue
        seen.add(same)
        tried.append(_Tried(each, after, gain, _keeps_layout(plan, after), memory if own else 0.0))
    return tried


def _rate(plan: Plan) -> float:
    return plan.tokens_per_s_per_npu


def _larger_batch(spec: Spec, plan: Plan, planner: Planner) -> GainAt | None:
    """Gain of a larger global batch, where the pipeline runs so few micro batches that it stands idle."""
    strategy = plan.strategy
    if spec.training.rl is not None or strategy.pp == 1 or plan.micro_batches >= FEW_MICRO_BATCHES * strategy.pp:
        return None
    factor = -(-FEW_MICRO_BATCHES * strategy.pp // plan.micro_batches)
    batch = spec.training.global_batch_size.model_copy(update={"value": spec.training.global_batch_size.value * factor})
    training = spec.training.model_copy(update={"global_batch_size": batch})
    return _gain_of(spec.model_copy(update={"training": training}), batch.value, plan, planner)


def _fewer_cards(spec: Spec, plan: Plan, planner: Planner) -> GainAt | None:
    """Gain a card of half of the cards with the same batch."""
    cards, strategy = spec.cluster.num_npus, spec.strategy
    if (
        cards is None
        or cards % 2
        or strategy is None
        or spec.training.rl is not None
        or (strategy.dp or plan.strategy.dp or 1) % 2
    ):
        return None
    cluster = spec.cluster.model_copy(update={"num_npus": cards // 2})
    halved = spec.model_copy(update={"cluster": cluster, "strategy": _with(strategy, dp=None)})
    return _gain_of(halved, cards // 2, plan, planner)


def _gain_of(spec: Spec, value: int, plan: Plan, planner: Planner) -> GainAt | None:
    try:
        other = planner.estimate(spec)
    except SpecError:
        return None
    gain = 100.0 * (_rate(other) / _rate(plan) - 1.0)
    return GainAt(value=value, gain_pct=gain) if gain >= WORTH_TELLING_PCT else None


def _predicted(
    neighbour: Neighbour, launch: Launch, on: frozenset[str], rules: LaunchRules, planner: Planner
) -> Plan | None:
    """The plan of a neighbour; None where the target can't launch it or it contradicts the cluster."""
    features = on | neighbour.features
    strategy, listed = neighbour.strategy, neighbour.strategy.named_features
    if listed is not None:
        strategy = strategy.model_copy(update={"features": tuple(sorted({*listed, *neighbour.features}))})
    spec = launch.spec.model_copy(update={"strategy": strategy})
    if neighbour.software:
        spec = spec.model_copy(update={"software": _otherwise(spec, neighbour.software)})
    try:
        if not planner.launch_rules(spec, features=features).names <= rules.names:
            return None
        if neighbour.places:
            return planner.place(spec, features=features)
        return planner.estimate(spec, features=features)
    except SpecError:
        return None


def _keeps_layout(before: Plan, after: Plan) -> bool:
    """Whether a checkpoint of the launch can be loaded as it is: every shard stays on its rank."""
    first, second = before.strategy, after.strategy
    if any(getattr(first, name) != getattr(second, name) for name in SHARDED_BY):
        return False
    folds = [s.schedule if kinds.schedule(s.schedule).ends_meet else "" for s in (first, second)]
    if folds[0] != folds[1]:
        return False
    if OTHER_STATES & set(first.features) != OTHER_STATES & set(second.features):
        return False
    return [stage.layers for stage in before.stages] == [stage.layers for stage in after.stages]


def _best_of_each_kind(tried: list[_Tried]) -> list[_Tried]:
    """The largest gain of each kind; where two are as good, the one that keeps the layout, then the first."""
    order = sorted(
        range(len(tried)),
        key=lambda i: (-round(tried[i].gain_pct, 6), not tried[i].keeps, tried[i].neighbour.places, i),
    )
    kept: dict[str, _Tried] = {}
    for index in order:
        kept.setdefault(tried[index].neighbour.kind, tried[index])
    return list(kept.values())


def _improvement(launch: Launch, plan: Plan, tried: _Tried) -> Improvement:
    before, neighbour = launch.spec.strategy, tried.neighbour
    assert before is not None
    # What was chosen anew is told as it was chosen; the rest as the launch would write it.
    after = tried.plan.strategy if neighbour.places else neighbour.strategy
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    changes = {
        name: value for name, value in new.items() if value != old.get(name) and name not in (*DERIVED, "features")
    }
    if "recompute" in changes:
        changes["recompute"] = after.recompute.model_dump(mode="json", exclude_defaults=True) or {"granularity": "none"}
    if before.rl is not None and after.rl is not None and changes.pop("rl", None) is not None:
        changes |= {axis: now for axis, now in _axes(after.rl).items() if now != _axes(before.rl)[axis]}
    added = sorted(name for name in neighbour.features if name not in changes and not neighbour.places)
    if added and "recompute" not in changes:
        changes["features"] = added
    flags = flag_changes(launch.spec, plan, tried.plan, launch.flags)
    return Improvement(
        name=neighbour.name,
        changes=changes,
        add_flags=flags.add,
        drop_flags=flags.drop,
        gain_pct=tried.gain_pct,
        memory_gain_pct=tried.memory_gain_pct,
        step_time_s=tried.plan.step_time_s,
        peak_memory_gib=tried.plan.peak_memory_gib,
        keeps_checkpoint_layout=tried.keeps,
        plan=tried.plan,
    )


def _axes(how: RlStrategy) -> dict[str, float | str | None]:
    """Every axis of where and how it generates, as a spec would write it."""
    return {axis: value_of(how, axis) for axis in RL_AXES}


def _best_gain_pct(spec: Spec, plan: Plan, planner: Planner) -> float | None:
    """Gain of the best plan of a short search."""
    result = best_of_short_search(spec, planner, time_limit_s=SEARCH_LIMIT_S)
    if not result.plans:
        return None
    return 100.0 * (result.plans[0].tokens_per_s_per_npu / plan.tokens_per_s_per_npu - 1.0)
