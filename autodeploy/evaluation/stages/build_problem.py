"""The inner problem of one candidate, from the same costs that the sweep reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.evaluation.entries import at
from autodeploy.evaluation.stages.inner_problem import FixedPiece, InnerProblem, LayerClass, LayerPairs, MemoryOption
from autodeploy.evaluation.stages.sends import p2p_s
from autodeploy.evaluation.stages.stage_memory import host_room_bytes, stage_buffers
from autodeploy.strategies.placement_rules import placement_limits
from autodeploy.workload.memory_choices import CHOICES, compete
from cost_models.schedule import in_flight_moments, kinds, model_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.layer_cost import ChoiceCost
    from autodeploy.evaluation.stages.step_classes import StepClass, StepClasses
    from autodeploy.strategies.candidates import Candidates
    from cost_models.arrays import Floats, Ints

    Known = list[dict[str, ChoiceCost]]  # choices of each class of layers
    Menu = Callable[[Known, Sequence[int], int], list[list[str]]]


# Choices of a class that the solver decides about: more multiply its work and change the plan by less than its gap.
MOST_CHOICES = 6
MOST_CHOICES_OF_FEW = 2  # of a class with less than a fifth of the layers


def build_problem(
    classes: StepClasses,
    candidates: Candidates,
    context: Context,
    index: int,
    *,
    choices: frozenset[str],
    menu: bool = True,
) -> InnerProblem:
    """The problem of candidate `index`.

    Parameters
    ----------
    menu : keep only the choices worth deciding about; a fixed strategy keeps all it names.
    choices : memory choices that may be used. "full" among them keeps one whole layer of workspace on every stage.
    """
    axes = candidates.axes_at(index)
    pp, vpp = int(axes["pp"]), int(axes["vpp"])
    schedule = str(axes["schedule"])
    kind = kinds.schedule(schedule)
    micro_batches = int(axes["micro_batches"])
    buffers = stage_buffers(classes, candidates, context, index, recomputes_layers="full" in choices)
    p2p = at(p2p_s(candidates.take(np.array([index])), context), 0)
    blocking = kind.blocking_sends
    limits = placement_limits(candidates.take(np.array([index])), context.facts, context.target)
    return InnerProblem(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        micro_batches=micro_batches,
        classes=_layer_classes(classes, context, index),
        pairs_of=LayerPairs(*_pair_tables(classes, lambda values: at(values, index))),
        layers=tuple(c.count for c in classes.layers),
        options=_options(classes, choices, index, menu=_menu_of(context) if menu else None),
        pieces=_pieces(classes, context, index, pp, vpp, schedule),
        in_flight=in_flight_moments(schedule, pp, vpp, micro_batches).astype(np.float64),
        limit_bytes=buffers.limit_bytes,
        fixed_bytes=buffers.fixed_bytes,
        host_link_bytes_per_s=at(context.machine.host.link_bytes_per_s, index),
        host_bytes_per_device=at(host_room_bytes(classes, candidates.pp, context), index),
        p2p_s=0.0 if blocking else p2p,
        blocking_p2p_s=p2p if blocking else 0.0,
        tail_s=0.0,
        uniform_options=context.framework.uniform_options,
        equal_chunks=limits.equal,
        min_layers_per_chunk=_least_layers(context, pp, vpp, filled=limits.filled),
    )


def with_choices(
    problem: InnerProblem,
    classes: StepClasses,
    candidates: Candidates,
    context: Context,
    index: int,
    choices: frozenset[str],
    *,
    menu: bool = False,
) -> InnerProblem:
    """The problem of a candidate with other memory choices and the workspace that they ask for; see `build_problem`."""
    buffers = stage_buffers(classes, candidates, context, index, recomputes_layers="full" in choices)
    options = _options(classes, choices, index, menu=_menu_of(context) if menu else None)
    return replace(problem, options=options, limit_bytes=buffers.limit_bytes, fixed_bytes=buffers.fixed_bytes)


@dataclass(frozen=True)
class Prices:
    """Costs of layers, of their pairs [rows, class, class] and of pieces by name, for every row of a batch."""

    layers: Sequence[tuple[LayerClass, ...]]
    pairs: LayerPairs
    pieces: Mapping[str, Sequence[LayerClass]]

    @classmethod
    def of(cls, classes: StepClasses, context: Context, rows: int) -> Prices:
        """Of the classes of a batch of so many candidates."""

        def read(values: object) -> Floats:
            return np.broadcast_to(np.asarray(values, dtype=np.float64), (rows,))

        def layer_rows(step: StepClass, hidden_s: object = 0.0) -> list[LayerClass]:
            columns = [values.tolist() for values in _layer_values(step, context, hidden_s, read)]
            return [LayerClass(step.name, *values) for values in zip(*columns, strict=True)]

        layers = [layer_rows(step, most) for step, most in zip(classes.layers, classes.most_hidden, strict=True)]
        tables = [np.ascontiguousarray(np.moveaxis(table, -1, 0)) for table in _pair_tables(classes, read)]
        pieces = {piece.name: layer_rows(piece) for piece in classes.pieces}
        return cls(list(zip(*layers, strict=True)), LayerPairs(*tables), pieces)


def repriced(
    problem: InnerProblem,
    prices: Prices,
    classes: StepClasses,
    context: Context,
    index: int,
    *,
    choices: frozenset[str],
    send_s: float,
) -> InnerProblem:
    """The problem at the prices of another row of a batch, which is the same candidate on another machine.

    Parameters
    ----------
    prices : of the batch. choices : memory choices, all of them kept. send_s : seconds in which that row sends to the
        next stage.
    """
    blocking = problem.kind.blocking_sends
    pairs = prices.pairs
    return replace(
        problem,
        classes=prices.layers[index],
        pairs_of=LayerPairs(pairs.hidden_s[index], pairs.exchange_s[index], pairs.first_s[index]),
        options=_options(classes, choices, index, menu=None),
        pieces=tuple(replace(piece, cost=prices.pieces[piece.cost.name][index]) for piece in problem.pieces),
        host_link_bytes_per_s=at(context.machine.host.link_bytes_per_s, index),
        p2p_s=0.0 if blocking else send_s,
        blocking_p2p_s=send_s if blocking else 0.0,
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


def _pair_tables(classes: StepClasses, read: Callable[[object], Any]) -> list[Floats]:
    """Tables of `LayerPairs`, in its order, of what is read of each entry [class, class, ...]."""
    names = ("hidden_s", "hidden_exchange_s", "first_s")
    return [np.array([[read(getattr(pair, name)) for pair in row] for row in classes.pairs]) for name in names]


def _layer_classes(classes: StepClasses, context: Context, index: int) -> tuple[LayerClass, ...]:
    each = zip(classes.layers, classes.most_hidden, strict=True)
    return tuple(_layer_class(step, context, index, at(most, index)) for step, most in each)


def _layer_class(step: StepClass, context: Context, index: int, hidden_s: float = 0.0) -> LayerClass:
    return LayerClass(step.name, *_layer_values(step, context, hidden_s, lambda values: at(values, index)))


def _layer_values(
    step: StepClass, context: Context, hidden_s: object, read: Callable[[object], Any]
) -> tuple[Any, ...]:
    """What a `LayerClass` holds after its name, in its order, of what is read of each entry."""
    slow, cost = context.slowest_device_factor, step.cost
    return (
        read(cost.forward.total_s) + (slow - 1.0) * read(cost.forward.compute_s),
        read(cost.backward.total_s) + (slow - 1.0) * read(cost.backward.compute_s),
        read(step.static.total),
        read(cost.activation_bytes),
        read(step.tail.total_s),
        read(hidden_s),
        read(cost.covering_s),
        read(cost.split_s),
    )


def _pieces(
    classes: StepClasses, context: Context, index: int, pp: int, vpp: int, schedule: str
) -> tuple[FixedPiece, ...]:
    """Embedding on the first part of the model, head and multi-token prediction on its last, wherever those are."""
    parts = model_parts(schedule, pp, vpp)
    placed = []
    for piece in classes.pieces:
        cost = _layer_class(piece, context, index)
        places = parts[0] if piece is classes.embedding else parts[-1]
        placed += [FixedPiece(cost, stage, chunk) for stage, chunk in places]
    return tuple(placed)


def held_pieces(problem: InnerProblem, classes: StepClasses) -> list[tuple[StepClass, FixedPiece]]:
    """Every place of every piece, with its costs."""
    steps = {step.name: step for step in classes.pieces}
    return [(steps[piece.cost.name], piece) for piece in problem.pieces]


def chunk_sums(
    problem: InnerProblem, classes: StepClasses, index: int, layers: Ints, of: Callable[[StepClass], object]
) -> Floats:
    """Sum over the layers [pp, vpp, class] and the pieces of every chunk of what one has [pp, vpp]."""
    total = layers @ np.array([at(of(step), index) for step in classes.layers])
    for step, piece in held_pieces(problem, classes):
        total[piece.stage, piece.chunk] += at(of(step), index)
    return np.asarray(total)


def _menu_of(context: Context) -> Menu:
    """How the choices worth deciding about are told: where an option is on for all layers or none, for all at once."""
    return _menu_of_all if context.framework.uniform_options else _menu_of_each


def _options(
    classes: StepClasses, choices: frozenset[str], index: int, *, menu: Menu | None
) -> tuple[MemoryOption, ...]:
    """Memory options of every layer class, with the choices whose tensors they share; all of them without a menu."""
    if not choices:
        return ()
    known = [{name: cost for name, cost in step.cost.choices.items() if name in choices} for step in classes.layers]
    names = [list(each) for each in known] if menu is None else menu(known, [c.count for c in classes.layers], index)
    options = []
    for number, (costs, mine) in enumerate(zip(known, names, strict=True)):
        for name in mine:
            cost = costs[name]
            saved = at(cost.saved_bytes, index)
            if saved <= 0.0:
                continue
            options.append(
                MemoryOption(
                    name=name,
                    kind=CHOICES[name].kind,
                    layer_class=number,
                    saved_bytes=saved,
                    extra_backward_s=at(cost.recompute_s, index),
                    swap_bytes=at(cost.swap_bytes, index),
                    host_s=at(cost.host_s, index),
                    excludes=tuple(other for other in mine if other != name and compete(name, other)),
                )
            )
    return tuple(options)


def _menu_of_each(known: Known, counts: Sequence[int], index: int) -> list[list[str]]:
    """Names worth deciding about for each class of layers, few for a class of few layers."""
    found = []
    for costs, count in zip(known, counts, strict=True):
        most = MOST_CHOICES_OF_FEW if count < 0.2 * sum(counts) else MOST_CHOICES
        found.append(_menu({name: _price(cost, index) for name, cost in costs.items()}, most))
    return found


def _menu_of_all(known: Known, counts: Sequence[int], index: int) -> list[list[str]]:
    """The same names for every class, by what they free and take on all layers together."""
    totals: dict[str, tuple[float, float]] = {}
    for costs, count in zip(known, counts, strict=True):
        for name, cost in costs.items():
            saved, recompute_s = _price(cost, index)
            before = totals.get(name, (0.0, 0.0))
            totals[name] = before[0] + count * saved, before[1] + count * recompute_s
    kept = _menu(totals, MOST_CHOICES)
    return [[name for name in costs if name in kept] for costs in known]


def _price(cost: ChoiceCost, index: int) -> tuple[float, float]:
    """Bytes that a choice frees on a layer, and the seconds that it takes."""
    return at(cost.saved_bytes, index), at(cost.recompute_s, index)


def _menu(prices: Mapping[str, tuple[float, float]], number: int) -> list[str]:
    """The choices worth deciding about: the `number` that free most bytes a second, full recompute always.

    Swapping costs no computation, so it comes first; what frees less than a hundredth of the most is left out.
    """
    most = max((saved for saved, _ in prices.values()), default=0.0)
    rate = {name: saved / (recompute_s + 1e-9) for name, (saved, recompute_s) in prices.items()}
    useful = [name for name, (saved, _) in prices.items() if name != "full" and saved > 0.01 * most]
    kept = set(sorted(useful, key=lambda name: (-rate[name], name))[:number]) | {"full"}
    return [name for name in prices if name in kept]
