"""The inner problem of one candidate, from the same costs that the sweep reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.costs.layers.unit_costs import at_rows, scalar_at
from autodeploy.costs.stages.chunk_loops import ChunkCosts
from autodeploy.costs.stages.inner_problem import FixedPiece, InnerProblem, MemoryOption, StartBytes
from autodeploy.costs.stages.stage_memory import (
    LossBytes,
    allocator_limit_bytes,
    builds_buffers,
    gathered_bytes,
    on_card_bytes,
    tried_out_bytes,
    workspace_bytes,
)
from autodeploy.costs.workload.memory_choices import CHOICES, compete
from autodeploy.space.rules import placement_limits
from cost_models.compiled import row_major
from cost_models.hbm import building_moments
from cost_models.schedule import in_flight_moments, kinds, model_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.layers.layer_cost import ChoiceCost
    from autodeploy.costs.stages.step_classes import Priced, StepClass
    from cost_models.arrays import Floats, Ints

    Known = list[dict[str, ChoiceCost]]  # choices of each class of layers


GROUPS = ("dense", "expert")
# Choices of a class that the solver decides about: more multiply its work and change the plan by less than its gap.
MOST_CHOICES = 6
MOST_CHOICES_OF_FEW = 2  # of a class with less than a fifth of the layers


@dataclass(frozen=True, slots=True)
class StageBuffers:
    """Bytes that every stage holds whatever its layers, and the limit that is left for the allocator.

    workspace_bytes [pp] counts against limit_bytes, which is the card's usable memory scaled so that sum(stage) <=
    limit_bytes means that the allocator's peak with fragmentation, communication buffers and runtime fit the card.
    """

    workspace_bytes: Floats
    communication_bytes: float
    runtime_bytes: float
    fragmentation: float
    card_limit_bytes: float

    @property
    def limit_bytes(self) -> float:
        """Bytes that weights, gradients, optimizer, activations and workspace may take together."""
        outside = self.communication_bytes + self.runtime_bytes
        return float(allocator_limit_bytes(self.card_limit_bytes, outside, self.fragmentation))

    def card_bytes(self, allocator_bytes: Floats) -> Floats:
        """Bytes on the card when the allocator holds `allocator_bytes` at its peak."""
        return on_card_bytes(allocator_bytes, self.communication_bytes + self.runtime_bytes, self.fragmentation)


def stage_buffers(priced: Priced, *, recomputes_layers: bool) -> StageBuffers:
    """Buffers of a candidate on each of its stages."""
    classes, context, machine = priced.classes, priced.context, priced.context.machine
    axes = priced.candidates.axes_at(priced.index)
    pp, vpp, schedule = int(axes["pp"]), int(axes["vpp"]), str(axes["schedule"])
    widest = max(priced.at(step.cost.worst_activation_bytes) for step in classes.layers)
    units = [step.cost for step in (*classes.layers, *classes.pieces)]
    largest = max(priced.at(cost.unit_params) for cost in units)
    ends = np.zeros(pp)
    ends[[stage for stage, _ in model_parts(schedule, pp, vpp)[-1]]] = 1.0
    head = classes.head.cost
    stays = priced.candidates.keep_gathered | context.whole_through_step(priced.candidates)
    workspace = workspace_bytes(
        np.full(pp, widest),
        gathered_bytes(np.asarray(largest), context, bool(stays[priced.index])),
        recomputes_layers=recomputes_layers,
        pairs=kinds.schedule(schedule).pairs,
        loss=LossBytes(priced.at(head.workspace_bytes) * ends, priced.at(head.passing_bytes) * ends),
    )
    return StageBuffers(
        workspace_bytes=workspace,
        communication_bytes=priced.at(classes.communication_bytes),
        runtime_bytes=machine.runtime_bytes,
        fragmentation=machine.fragmentation,
        card_limit_bytes=context.limit_bytes,
    )


def _host_room_bytes(priced: Priced) -> float:
    """Host bytes of a device that its optimizer states leave for what is swapped.

    States take those of an even share of the layers and of the largest piece.
    """
    classes, context = priced.classes, priced.context
    layers = sum(step.count * priced.at(step.static.host) for step in classes.layers)
    piece = max(priced.at(piece.static.host) for piece in classes.pieces)
    return max(0.0, context.host_bytes_per_device - (layers / int(priced.candidates.pp[priced.index]) + piece))


def build_problem(priced: Priced, *, choices: frozenset[str], menu: bool = True) -> InnerProblem:
    """The problem of a candidate.

    menu : keep only the choices worth deciding about; a fixed strategy keeps all it names.
    choices : memory choices that may be used. "full" among them keeps one whole layer of workspace on every stage.
    """
    context, axes = priced.context, priced.candidates.axes_at(priced.index)
    schedule, pp, vpp = str(axes["schedule"]), int(axes["pp"]), int(axes["vpp"])
    micro_batches = int(axes["micro_batches"])
    buffers = stage_buffers(priced, recomputes_layers="full" in choices)
    limits = placement_limits(priced.candidate, context.facts, context.target)
    return InnerProblem(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        micro_batches=micro_batches,
        layers=tuple(c.count for c in priced.classes.layers),
        in_flight=in_flight_moments(schedule, pp, vpp, micro_batches).astype(np.float64),
        limit_bytes=buffers.limit_bytes,
        fixed_bytes=buffers.workspace_bytes,
        host_bytes_per_device=_host_room_bytes(priced),
        tail_s=0.0,
        uniform_options=context.framework.uniform_options,
        equal_chunks=limits.equal,
        chunk_starts=context.model.index_starts if limits.whole_groups else (),
        min_layers_per_chunk=_least_layers(context, pp, vpp, filled=limits.filled),
        start=_start(priced, schedule, pp, vpp),
        **_costs(priced, (schedule, pp, vpp), _options(priced, choices, menu=menu)),
    )


def _start(priced: Priced, schedule: str, pp: int, vpp: int) -> StartBytes | None:
    """Bytes before the first step: each parameter in its buffer, and of those that move last a second time."""
    classes, context = priced.classes, priced.context
    tried_out = float(tried_out_bytes(priced.candidate, context)[0])
    if not builds_buffers(context):
        places = len(_places_of_pieces(priced, schedule, pp, vpp))
        none = StartBytes(np.zeros((0, len(classes.layers))), np.zeros((0, places)), tried_out)
        return none if tried_out else None
    held = float(context.optimizer.weights), float(context.gradient_bytes)

    def moments(steps: Sequence[StepClass]) -> Floats:
        dense, expert = (np.array([priced.at(getattr(s.cost, f"{k}_params")) for s in steps]) for k in GROUPS)
        gradients = np.array([priced.at(step.static.gradients) for step in steps])
        rows: Floats = row_major(np.stack(building_moments(dense, expert, held, vpp, gradients)))
        return rows

    pieces = [classes.pieces[number] for number, _, _ in _places_of_pieces(priced, schedule, pp, vpp)]
    return StartBytes(moments(classes.layers), moments(pieces), tried_out)


def _places_of_pieces(priced: Priced, schedule: str, pp: int, vpp: int) -> list[tuple[int, int, int]]:
    """Number, stage and chunk of each piece: the embedding on the model's first part, all others on its last.

    Prediction modules that are apart from the head are on the last part but one. Source: Megatron-LM @d98e8a64,
    docs/user-guide/features/multi_token_prediction.md, `(t|)*4tm|L`; MindSpeed @028de58c, the layouts' document.
    """
    parts, apart = model_parts(schedule, pp, vpp), priced.context.operators.predictors_apart
    part_of = {"embedding": 0, "mtp": -2 if apart else -1}
    counted = enumerate(piece.name for piece in priced.classes.pieces)
    return [(number, *place) for number, name in counted for place in parts[part_of.get(name, -1)]]


def with_choices(problem: InnerProblem, priced: Priced, choices: frozenset[str], *, menu: bool = False) -> InnerProblem:
    """The problem of a candidate with other memory choices and the workspace that they ask for; see `build_problem`."""
    buffers = stage_buffers(priced, recomputes_layers="full" in choices)
    options = _options(priced, choices, menu=menu)
    return replace(problem, options=options, limit_bytes=buffers.limit_bytes, fixed_bytes=buffers.workspace_bytes)


def under_limit(problem: InnerProblem, priced: Priced) -> InnerProblem:
    """The problem of a candidate at the limit of the context that it is priced in: nothing else depends on it."""
    machine = priced.context.machine
    outside = priced.at(priced.classes.communication_bytes) + machine.runtime_bytes
    limit = allocator_limit_bytes(priced.context.limit_bytes, outside, machine.fragmentation)
    return replace(problem, limit_bytes=float(limit))


def repriced(problem: InnerProblem, priced: Priced, *, choices: frozenset[str]) -> InnerProblem:
    """The problem at the prices of the same candidate on another machine.

    choices : memory choices, all of them kept.
    """
    options = _options(priced, choices, menu=False)
    return replace(problem, **_costs(priced, (problem.schedule, problem.pp, problem.vpp), options))


def _costs(priced: Priced, shape: tuple[str, int, int], options: tuple[MemoryOption, ...]) -> dict[str, Any]:
    """Fields of the problem that depend on the machine, of a schedule with so many stages and chunks of each."""
    classes = priced.classes
    layers, costs, pairs = classes.at(priced.index)
    blocking, send_s = kinds.schedule(shape[0]).blocking_sends, priced.at(classes.send_s)
    places = _places_of_pieces(priced, *shape)
    pieces = [FixedPiece(costs[number], stage, chunk) for number, stage, chunk in places]
    return {
        "classes": tuple(layers),
        "pairs_of": pairs,
        "options": options,
        "pieces": tuple(pieces),
        "host_link_bytes_per_s": priced.at(priced.context.machine.host.link_bytes_per_s),
        "p2p_s": 0.0 if blocking else send_s,
        "blocking_p2p_s": send_s if blocking else 0.0,
    }


def costs_on(problem: InnerProblem, batch: Priced, rows: Ints) -> ChunkCosts:
    """Sums of a candidate's chunks on the machines of some rows of a batch, each the same candidate.

    problem : at the prices of one of the rows; a row frees and swaps what it does.
    """
    classes, pairs, none = batch.classes, batch.classes.pair_tables, np.zeros(len(rows))
    kinds_of_layers, names = len(classes.layers), [piece.name for piece in classes.pieces]
    places = [kinds_of_layers + names.index(piece.cost.name) for piece in problem.pieces]
    numbers = {name: values[rows] for name, values in classes.numbers.items()}
    extra_s = [classes.layers[each.layer_class].cost.choices[each.name].recompute_s for each in problem.options]
    assert classes.send_s is not None
    blocking, send_s = kinds.schedule(problem.schedule).blocking_sends, classes.send_s[rows]

    def of_pairs(table: Floats) -> Floats:
        pairs: Floats = row_major(np.moveaxis(at_rows(table, rows) + none[:, None, None], 0, -1))
        return pairs

    return ChunkCosts(
        layers={name: row_major(values[:, :kinds_of_layers]) for name, values in numbers.items()},
        pieces={name: values[:, places] for name, values in numbers.items()},
        hidden_s=of_pairs(pairs.hidden_s),
        exchange_s=of_pairs(pairs.exchange_s),
        first_s=of_pairs(pairs.first_s),
        extra_backward_s=row_major(np.reshape([at_rows(each, rows) + none for each in extra_s], (-1, len(rows))).T),
        swap_bytes=np.repeat(problem.costs.swap_bytes, len(rows), axis=0),
        host_link_bytes_per_s=at_rows(np.asarray(batch.context.machine.host.link_bytes_per_s), rows) + none,
        p2p_s=none if blocking else send_s,
        blocking_p2p_s=send_s if blocking else none,
    )


def _least_layers(context: Context, pp: int, vpp: int, *, filled: bool) -> int:
    """Layers that every chunk holds: one, where there are enough.

    Levelled stages may leave the last chunk to the head and the prediction modules, which take longer than a layer,
    unless the launch wants every chunk `filled`.
    """
    if context.model.num_hidden_layers < pp * vpp:
        return 0
    heavy_end = vpp > 1 and context.model.num_nextn_predict_layers > 0 and not filled
    return 0 if heavy_end and "virtual_pipeline_balance" in context.mechanisms else 1


def _options(priced: Priced, choices: frozenset[str], *, menu: bool) -> tuple[MemoryOption, ...]:
    """Memory options of every layer class, with the choices whose tensors they share; all of them without a menu.

    Where an option is on for all layers or none, the menu is told for all classes at once.
    """
    if not choices:
        return ()
    layers, index = priced.classes.layers, priced.index
    menus = [{name: cost for name, cost in step.cost.choices.items() if name in choices} for step in layers]
    names = [list(each) for each in menus]
    if menu:
        menu_of = _menu_of_all if priced.context.framework.uniform_options else _menu_of_each
        names = menu_of(menus, [step.count for step in layers], index)
    options = []
    for number, (costs, of_class) in enumerate(zip(menus, names, strict=True)):
        for name in of_class:
            cost = costs[name]
            saved = scalar_at(cost.saved_bytes, index)
            if saved <= 0.0:
                continue
            options.append(
                MemoryOption(
                    name=name,
                    kind=CHOICES[name].kind,
                    layer_class=number,
                    saved_bytes=saved,
                    extra_backward_s=scalar_at(cost.recompute_s, index),
                    swap_bytes=scalar_at(cost.swap_bytes, index),
                    host_s=scalar_at(cost.host_s, index),
                    excludes=tuple(other for other in of_class if other != name and compete(name, other)),
                )
            )
    return tuple(options)


def _menu_of_each(menus: Known, counts: Sequence[int], index: int) -> list[list[str]]:
    """Names worth deciding about for each class of layers, few for a class of few layers."""
    names = []
    for costs, count in zip(menus, counts, strict=True):
        most = MOST_CHOICES_OF_FEW if count < 0.2 * sum(counts) else MOST_CHOICES
        names.append(_menu({name: _price(cost, index) for name, cost in costs.items()}, most))
    return names


def _menu_of_all(menus: Known, counts: Sequence[int], index: int) -> list[list[str]]:
    """The same names for every class, by what they free and take on all layers together."""
    totals: dict[str, tuple[float, float]] = {}
    for costs, count in zip(menus, counts, strict=True):
        for name, cost in costs.items():
            saved, recompute_s = _price(cost, index)
            before = totals.get(name, (0.0, 0.0))
            totals[name] = before[0] + count * saved, before[1] + count * recompute_s
    kept = _menu(totals, MOST_CHOICES)
    return [[name for name in costs if name in kept] for costs in menus]


def _price(cost: ChoiceCost, index: int) -> tuple[float, float]:
    """Bytes that a choice frees on a layer, and the seconds that it takes."""
    return scalar_at(cost.saved_bytes, index), scalar_at(cost.recompute_s, index)


def _menu(prices: Mapping[str, tuple[float, float]], number: int) -> list[str]:
    """The choices worth deciding about: the `number` that free most bytes a second, full recompute always.

    Swapping costs no computation, so it comes first; what frees less than a hundredth of the most is left out.
    """
    most = max((saved for saved, _ in prices.values()), default=0.0)
    rate = {name: saved / (recompute_s + 1e-9) for name, (saved, recompute_s) in prices.items()}
    useful = [name for name, (saved, _) in prices.items() if name != "full" and saved > 0.01 * most]
    kept = set(sorted(useful, key=lambda name: (-rate[name], name))[:number]) | {"full"}
    return [name for name in prices if name in kept]
