"""One strategy as its document says it: its candidate, its layout, its estimate, and a step of several phases.

Pre-training is one update. Post-training scores what it trains on first, with passes that go forward alone, and may
update several times a step. Both are the one estimate of a strategy: a forward pass alone keeps nothing and is followed
by nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from autodeploy.costs.layers.unit_costs import at_rows, resolved, unit_costs
from autodeploy.costs.stages.step_classes import Priced, step_classes
from autodeploy.costs.steps.estimate import Layout, estimate_layout, template_layers
from autodeploy.costs.steps.scenarios import estimate_and_slopes
from autodeploy.costs.workload.memory_choices import compete
from autodeploy.kit.errors import SpecError, UnsupportedError
from autodeploy.messages import Message
from autodeploy.space.candidates import CP_ALGOS, DISPATCHERS, Candidates, concatenate
from autodeploy.space.facts import placed_facts
from autodeploy.specs.strategy import ChoiceKey
from autodeploy.stack.features import FEATURES
from autodeploy.stack.memory_choices import SWAPPED
from cost_models.schedule import SCHEDULES, kinds, model_parts, parameter_copies, schedule_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.stages.step_classes import StepClasses
    from autodeploy.costs.steps.estimate import Estimate
    from autodeploy.specs.strategy import Strategy
    from cost_models.arrays import Floats, Ints
    from hardware_profiles.covariance import FittedFactor


# Refusals of strategies that recompute by operator where nothing knows it, or beside what frees the same tensors.
BY_OPERATOR = "by_operator"
PATH = "/strategy/recompute"


def refuse_beside(applied: Mapping[ChoiceKey, Ints], stage_layers: Ints) -> None:
    """Refuses layers that recompute by operator and use another choice of the same tensors: the policy is of all.

    applied : layers of each stage that use a choice [pp]. stage_layers : of each stage [pp].

    Raises SpecError with the other choice.
    """
    counted = sum((counts for key, counts in applied.items() if key.name == BY_OPERATOR), np.zeros_like(stage_layers))
    for key, counts in applied.items():
        if key.name != BY_OPERATOR and compete(key.name, BY_OPERATOR) and np.any(counted + counts > stage_layers):
            raise SpecError(Message("evaluation.by_operator_alone", name=key.name), path=PATH)


def refuse_unknown(layout: Layout, classes: StepClasses) -> None:
    """Refuses recomputation by operator of layers that don't know it.

    Raises UnsupportedError if none of the model's layers does.
    """
    if BY_OPERATOR in layout.chosen and not any(BY_OPERATOR in each.cost.choices for each in classes.layers):
        raise UnsupportedError(Message("evaluation.by_operator_unmodelled"), path=PATH, hint="granularity=full")


T = TypeVar("T")


def candidate_of(
    strategy: Strategy, *, world: int, global_batch: int, moe: bool, vendor: str, possible: bool = True
) -> Candidates:
    """The strategy as a batch of one candidate.

    dp and the number of micro batches follow. The rule that says so counts a fraction illegal; of dp it is rounded
    down (`refuse_fractions` is for who predicts it), of micro batches up (the fullest replica sets the time).
    Absent, `etp` is tp on Ascend and 1 elsewhere, as the frameworks' defaults are.

    possible : refuse what can't be simulated; False makes a candidate of anything, for rules to say what is wrong.
    """
    tp, pp, cp = strategy.tp, strategy.pp, strategy.cp
    dp = max(1, world // (tp * pp * cp))
    if possible and strategy.dp is not None and strategy.dp != dp:
        raise SpecError(
            Message("evaluation.dp_mismatch", dp=strategy.dp, world=world, rest=dp),
            path="/strategy/dp",
            hint=Message("common.leave_it_out"),
        )
    etp = strategy.etp if strategy.etp is not None else (tp if vendor == "huawei" else 1)
    algo = strategy.cp_algo or "ring"
    ulysses = {"ring": 1, "ulysses": cp, "hybrid": strategy.ulysses_degree or min(8, max(2, cp // 2))}[algo]
    schedule, vpp = strategy.schedule, chunks_of(strategy, possible=possible)
    kind = kinds.schedule(schedule)
    if kind.other_chunks and not kind.has_chunks(vpp):
        schedule = kind.other_chunks
    micro_batches = -(-global_batch // (strategy.micro_batch_size * dp))
    if possible and (problem := schedule_problem(schedule, pp, vpp, micro_batches)):
        raise SpecError(
            problem,
            path="/strategy/schedule",
            hint=Message("common.one_of", names="1f1b, interleaved, adaptive_pipe"),
        )
    dispatcher = strategy.moe_dispatcher or "alltoall"
    if "hierarchical_a2a" in strategy.features and strategy.moe_dispatcher is None:
        dispatcher = "hierarchical"
    sequence = strategy.sequence_parallel if strategy.sequence_parallel is not None else tp > 1

    def one(value: int | bool) -> np.ndarray:
        return np.asarray([value])

    return Candidates(
        tp=one(tp),
        pp=one(pp),
        vpp=one(vpp),
        cp=one(cp),
        cp_algo=one(CP_ALGOS.index(algo)),
        ulysses=one(ulysses if cp > 1 else 1),
        ep=one(strategy.ep),
        etp=one(etp if moe else 1),
        dp=one(dp),
        micro_batch_size=one(strategy.micro_batch_size),
        micro_batches=one(micro_batches),
        schedule=one(SCHEDULES.index(schedule)),
        moe_dispatcher=one(DISPATCHERS.index(dispatcher)),
        sequence_parallel=one(bool(sequence) and tp > 1),
        reuse_fp32_param=one(strategy.reuse_fp32_param or "reuse_fp32_param" in strategy.features),
        swap_optimizer=one(
            strategy.swap_optimizer
            or strategy.optimizer_offload_fraction is not None
            or "swap_optimizer" in strategy.features
        ),
        virtual_optimizer=one("virtual_optimizer" in strategy.features),
        keep_gathered=one("keep_gathered" in strategy.features),
        dp_replicate=one(strategy.dp_replicate),
        tp_pp_dp_mapping=one("tp_pp_dp_mapping" in strategy.features),
    )


def refuse_fractions(candidate: Candidates, context: Context) -> None:
    """Refuses a strategy of which some group, or some rank's share of the experts, would be a fraction.

    Raises SpecError with the degree that leaves a fraction, and what would not.
    """
    tp, cp, pp, ep, etp, dp = (int(getattr(candidate, axis)[0]) for axis in ("tp", "cp", "pp", "ep", "etp", "dp"))
    world, experts, ranks = context.world, context.model.n_routed_experts, 1
    for axis, degree in (("tp", tp), ("cp", cp), ("pp", pp)):
        ranks *= degree
        if world % ranks:
            raise SpecError(
                Message("common.does_not_divide", part=f"tp x pp x cp = {tp * pp * cp}", whole=f"world {world}"),
                path=f"/strategy/{axis}",
                hint=Message("common.divisor_of", whole=world),
            )
    ulysses = int(candidate.ulysses[0])
    if cp % ulysses:
        raise SpecError(
            Message("common.does_not_divide", part=f"ulysses_degree {ulysses}", whole=f"cp {cp}"),
            path="/strategy/ulysses_degree",
            hint=Message("common.divisor_of", whole="cp"),
        )
    if experts and experts % ep:
        raise SpecError(
            Message("common.does_not_divide", part=f"ep {ep}", whole=f"n_routed_experts {experts}"),
            path="/strategy/ep",
            hint=Message("common.divisor_of", whole="n_routed_experts"),
        )
    stage, copies = tp * cp * dp, int(candidate.dp_replicate[0])
    if cp * dp % copies or (experts and stage // (etp * ep) % copies):
        shared = f"dp x cp = {cp * dp}" if cp * dp % copies else f"tp x cp x dp / (etp x ep) = {stage // (etp * ep)}"
        raise SpecError(
            Message("common.does_not_divide", part=f"dp_replicate {copies}", whole=shared),
            path="/strategy/dp_replicate",
            hint=Message("common.divisor_of", whole="dp x cp, tp x cp x dp / (etp x ep)"),
        )
    if experts and stage % (etp * ep):
        raise SpecError(
            Message("common.does_not_divide", part=f"etp x ep = {etp * ep}", whole=f"tp x cp x dp = {stage}"),
            path="/strategy/ep",
            hint=Message("common.divisor_of", whole="tp x cp x dp"),
        )


def facts_of_placement(strategy: Strategy) -> dict[str, Any]:
    """Facts of the layers that a strategy places and recomputes, for rules; none where it leaves them to the search."""
    given, kind, recompute = strategy.layers_per_stage, strategy.schedule, strategy.recompute
    counted = recompute.num_layers, recompute.num_layers_per_stage, recompute.per_stage
    whole = {"recomputes_all": recompute.granularity == "full" and not any(counted)}
    whole["updates_on_host"] = strategy.optimizer_offload_fraction is not None
    whole["predictors_apart"] = strategy.predictors_apart
    if given is None:
        return whole
    vpp = chunks_of(strategy)
    per_chunk = _per_chunk(given, kind, strategy.pp, vpp)
    return whole | placed_facts([int(per_chunk[places[0]]) for places in model_parts(kind, strategy.pp, vpp)])


def chunks_of(strategy: Strategy, *, possible: bool = True) -> int:
    """Chunks of a stage; a schedule that has one number of them, as two under DualPipe, needs no vpp to say so."""
    kind = kinds.schedule(strategy.schedule)
    if kind.chunks is None:
        return strategy.vpp
    if strategy.vpp not in (1, kind.chunks):
        if not possible:
            return strategy.vpp
        raise SpecError(
            Message("evaluation.schedule_chunks", schedule=kind.name, count=kind.chunks, vpp=strategy.vpp),
            path="/strategy/vpp",
            hint=Message("common.leave_it_out"),
        )
    return kind.chunks


def layout_of(strategy: Strategy, counts: tuple[int, ...]) -> Layout:
    """Layers of each class per chunk, and the layers of each stage that use each memory choice."""
    pp, vpp, given = strategy.pp, chunks_of(strategy), strategy.layers_per_stage
    kind = strategy.schedule
    per_chunk = None
    if given is not None:
        per_chunk = _per_chunk(given, kind, pp, vpp)
        copies = {tuple(int(per_chunk[place]) for place in places) for places in model_parts(kind, pp, vpp)}
        if any(len(set(sizes)) > 1 for sizes in copies):
            raise SpecError(Message("evaluation.mirrored_devices_differ"), path="/strategy/layers_per_stage")
        total = int(per_chunk.sum()) // parameter_copies(kind)
        if total != sum(counts):
            raise SpecError(
                Message("evaluation.layers_per_stage_sum", total=total, layers=sum(counts)),
                path="/strategy/layers_per_stage",
            )
    layers = template_layers(counts, pp, vpp, per_chunk, kind)
    return Layout(layers, _applied(strategy, layers.sum(axis=(1, 2))))


def _per_chunk(given: tuple[int, ...] | tuple[tuple[int, ...], ...], kind: str, pp: int, vpp: int) -> np.ndarray:
    """Layers of every chunk [pp, vpp]; one number a stage is spread over its chunks (of a part that is there twice:
    both copies have it)."""
    rows = []
    for number, stage in enumerate(given):
        row = stage if isinstance(stage, tuple) else None
        if row is None and parameter_copies(kind) > 1:
            row = (int(given[number]), int(given[pp - 1 - number]))  # type: ignore[arg-type]
        elif row is None:
            assert isinstance(stage, int)
            base, rest = divmod(stage, vpp)
            row = tuple(base + (1 if c < rest else 0) for c in range(vpp))
        if len(row) != vpp:
            raise SpecError(
                Message("common.entries_expected", count=vpp, found=len(row)),
                path="/strategy/layers_per_stage",
            )
        rows.append(row)
    return np.asarray(rows, dtype=np.int64).reshape(pp, vpp)


def _applied(strategy: Strategy, stage_layers: np.ndarray) -> dict[ChoiceKey, np.ndarray]:
    """Layers of each stage per memory choice, capped at the stage's layers."""
    recompute = strategy.recompute
    applied: dict[ChoiceKey, np.ndarray] = {}
    limit = stage_layers
    if recompute.num_layers_per_stage is not None:
        limit = np.minimum(stage_layers, recompute.num_layers_per_stage)
    elif recompute.num_layers is not None:
        limit = np.minimum(stage_layers, recompute.num_layers)
    if recompute.per_stage is not None:
        for name in sorted({name for stage in recompute.per_stage for name in stage}):
            counts = np.asarray([stage.get(name, 0) for stage in recompute.per_stage], dtype=np.int64)
            applied[ChoiceKey.of(name)] = np.minimum(counts, stage_layers)
    elif recompute.granularity == "full":
        applied[ChoiceKey("full")] = limit
    elif recompute.granularity == "selective":
        applied.update(dict.fromkeys(map(ChoiceKey, recompute.modules), limit))
    if strategy.swap_per_stage is not None:
        for name in sorted({name for stage in strategy.swap_per_stage for name in stage}):
            module = ChoiceKey.of(name)
            counts = np.asarray([stage.get(name, 0) for stage in strategy.swap_per_stage], dtype=np.int64)
            applied[module._replace(name=SWAPPED[module.name].name)] = np.minimum(counts, stage_layers)
    for name in () if strategy.swap_per_stage is not None else strategy.swap:
        if name not in SWAPPED:
            raise UnsupportedError(Message("common.is_not_modelled_yet", what=f"swap {name!r}"), path="/strategy/swap")
        applied[ChoiceKey(SWAPPED[name].name)] = stage_layers
    refuse_beside(applied, stage_layers)
    return applied


@dataclass(frozen=True)
class Estimated:
    """A strategy's estimate and what it was made from: the context has the features that the strategy uses.

    classes : of a batch, whose first the candidate is.
    """

    estimate: Estimate
    context: Context
    candidate: Candidates
    classes: StepClasses
    layout: Layout

    @property
    def priced(self) -> Priced:
        """The candidate with its layers' costs."""
        return Priced(self.classes, self.candidate, self.context)


def estimated(strategy: Strategy, context: Context, *, forward_only: bool = False) -> Estimated:
    """The estimate of a strategy; of its forward passes alone where nothing is trained.

    Raises SpecError if its degrees contradict the cluster, or its schedule is not modelled.
    """
    candidate = candidate_for(context, strategy)
    context = as_placed(resolved(context, candidate), strategy)
    classes = step_classes(unit_costs(context, candidate), candidate, context)
    return _laid_out(strategy, context, candidate, classes, forward_only=forward_only)


def estimated_with_slopes(
    strategy: Strategy, context: Context, factors: Sequence[FittedFactor]
) -> tuple[Estimated, Floats]:
    """`estimated` with the slopes of its log step time by these log factors of the context's profile [factors]."""
    candidate = candidate_for(context, strategy)
    context = as_placed(resolved(context, candidate), strategy)
    priced = estimate_and_slopes(candidate, context, partial(layout_among, strategy), factors)
    return Estimated(priced.estimate, context, candidate, priced.classes, priced.layout), priced.slopes


def as_placed(context: Context, strategy: Strategy) -> Context:
    """The context with prediction modules where the strategy has them.

    Raises SpecError if there is no place for them before the last part: it takes a pipeline that does not fold, whose
    last part has no layer.
    """
    if not strategy.predictors_apart:
        return context
    pp, vpp, kind = strategy.pp, chunks_of(strategy), kinds.schedule(strategy.schedule)
    rows = strategy.layers_per_stage
    last = None if rows is None else _per_chunk(rows, kind.name, pp, vpp)[-1, -1]
    if not context.model.num_nextn_predict_layers or pp == 1 or kind.folded or kind.copies > 1 or last != 0:
        raise SpecError(Message("evaluation.predictors_apart"), path="/strategy/predictors_apart")
    return replace(context, operators=replace(context.operators, predictors_apart=True))


def _laid_out(
    strategy: Strategy, context: Context, candidate: Candidates, classes: StepClasses, *, forward_only: bool
) -> Estimated:
    """The estimate of a strategy whose layers are priced."""
    layout = layout_among(strategy, classes)
    estimate = estimate_layout(Priced(classes, candidate, context), layout, forward_only=forward_only)
    return Estimated(estimate, context, candidate, classes, layout)


def layout_among(strategy: Strategy, classes: StepClasses) -> Layout:
    """The strategy's layers and memory choices, none of which the classes may lack."""
    layout = layout_of(strategy, tuple(c.count for c in classes.layers))
    refuse_unknown(layout, classes)
    return layout


def candidate_for(context: Context, strategy: Strategy) -> Candidates:
    """The strategy as a batch of one.

    Raises SpecError if its degrees contradict the cluster or leave a fraction of a group, or its schedule is not
    modelled.
    """
    candidate = judged_candidate(context, strategy)
    refuse_fractions(candidate, context)
    return candidate


def judged_candidate(context: Context, strategy: Strategy) -> Candidates:
    """The same for rules to judge: fractions are theirs to name."""
    used = strategy.tp * strategy.pp * strategy.cp
    if used > context.world:
        raise SpecError(
            Message("common.exceeds", one=f"tp x pp x cp = {used}", other=f"world {context.world}"),
            path="/strategy",
        )
    if context.fsdp and kinds.schedule(strategy.schedule).pairs:
        raise SpecError(
            Message("evaluation.schedule_cannot_gather", schedule=strategy.schedule),
            path="/strategy/fsdp",
            hint=Message("common.one_of", names="1f1b, interleaved"),
        )
    return as_candidate(context, strategy, possible=True)


def as_candidate(context: Context, strategy: Strategy, *, possible: bool) -> Candidates:
    """The strategy as a batch of one, refused or not where it can't be simulated."""
    # An embedding and a head may have a chunk to themselves.
    parts = context.model.num_hidden_layers + 2
    if possible and strategy.vpp > parts:
        raise SpecError(
            Message("common.exceeds", one=f"vpp {strategy.vpp}", other=f"num_hidden_layers + 2 = {parts}"),
            path="/strategy/vpp",
        )
    return candidate_of(
        strategy,
        world=context.world,
        global_batch=context.global_batch,
        moe=context.model.is_moe,
        vendor=context.machine.vendor,
        possible=possible,
    )


@dataclass(frozen=True, slots=True)
class StepPhase:
    """Use of the model in a phase.

    kind : forward alone, or an update: forward, backward, reduction of gradients and optimizer. rows : sequences of one
    pass, on all ranks together. passes : of the step, in turn: each fills the pipeline anew.
    """

    kind: Literal["forward", "update"]
    rows: int
    passes: int = 1


@dataclass(frozen=True)
class PhaseCost:
    """Seconds of a phase, all its passes; the parts of `breakdown` add up to them. `estimated`: of one pass."""

    seconds: float
    breakdown: dict[str, float]
    estimated: Estimated

    @property
    def bound_by(self) -> str:
        """The part that takes longest, the first of equals."""
        return max(self.breakdown, key=lambda name: self.breakdown[name])


def phase_costs(phases: Sequence[StepPhase], strategy: Strategy, context: Context) -> list[PhaseCost]:
    """The cost of each phase; `context` says what a sequence is.

    Raises SpecError as of `estimated`.
    """
    (costs,) = phase_costs_together([Phases(phases, strategy, context)])
    if isinstance(costs, SpecError):
        raise costs
    return costs


def phase_cost(phase: StepPhase, strategy: Strategy, context: Context) -> PhaseCost:
    """The cost of one phase, as of `phase_costs`."""
    return phase_costs([phase], strategy, context)[0]


@dataclass(frozen=True)
class Phases:
    """Phases of a strategy; `context` says what a sequence is, and leaves nothing open."""

    phases: Sequence[StepPhase]
    strategy: Strategy
    context: Context

    def context_at(self, number: int) -> Context:
        """The context with the rows of a phase."""
        return replace(self.context, global_batch=self.phases[number].rows)

    def candidates(self) -> list[Candidates]:
        """The strategy in each phase.

        Raises SpecError as of `candidate_for`, and of prediction modules apart from the head: phases share one table.
        """
        if self.strategy.predictors_apart:
            raise SpecError(Message("evaluation.predictors_apart"), path="/strategy/predictors_apart")
        return [candidate_for(self.context_at(number), self.strategy) for number in range(len(self.phases))]


def priced_by(context: Context) -> tuple[object, ...]:
    """Key of the costs of layers: contexts of one model and cluster where it is equal are priced together.

    The global batch is none of it, and a feature that is an axis of a strategy is the candidate's.
    """
    on = frozenset(name for name in context.features if name not in FEATURES or not FEATURES[name].axis)
    return (context.num_npus, context.seq_length, context.packs, context.distributed_optimizer, context.host, on)


def phase_costs_together(asked: Sequence[Phases]) -> list[list[PhaseCost] | SpecError]:
    """`phase_costs` of several strategies that are `priced_by` the same, or what refuses them: layers in one batch."""
    rows: dict[tuple[object, ...], int] = {}
    distinct: list[Candidates] = []

    def rows_of(one: Phases) -> list[int]:
        rows_asked = []
        for candidate in one.candidates():
            row = rows.setdefault(tuple(candidate.axes_at(0).values()), len(distinct))
            if row == len(distinct):
                distinct.append(candidate)
            rows_asked.append(row)
        return rows_asked

    places = [or_refusal(partial(rows_of, one)) for one in asked]
    if not distinct:
        return [place for place in places if isinstance(place, SpecError)]
    context, together = asked[0].context, concatenate(distinct)
    assert not context.alternatives
    classes = step_classes(unit_costs(context, together), together, context)

    def costs_of(one: Phases, rows_of_phases: Sequence[int]) -> list[PhaseCost]:
        costs = []
        for number, (phase, row) in enumerate(zip(one.phases, rows_of_phases, strict=True)):
            alone = at_rows(classes, np.array([row])) if len(distinct) > 1 else classes
            results = _laid_out(
                one.strategy, one.context_at(number), distinct[row], alone, forward_only=phase.kind == "forward"
            )
            parts = {name: phase.passes * seconds for name, seconds in results.estimate.breakdown.items()}
            costs.append(PhaseCost(phase.passes * results.estimate.step_time_s, parts, results))
        return costs

    return [
        place if isinstance(place, SpecError) else or_refusal(partial(costs_of, one, place))
        for one, place in zip(asked, places, strict=True)
    ]


def or_refusal(attempt: Callable[[], T]) -> T | SpecError:
    """The result of an attempt, or the error that says why there is none."""
    try:
        return attempt()
    except SpecError as error:
        return error
