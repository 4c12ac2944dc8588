"""The stage bound of one inner problem: a batch of one, or of one for each set of options that is on for all layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.solver.bounds.paths import hidden_shares
from autodeploy.solver.bounds.stage_bound import Batch, least_bound_s, least_bytes, most_layers
from autodeploy.solver.inner.layer_choices import Choices, Part, choices_of
from autodeploy.solver.inner.layouts import most_layers_per_chunk

if TYPE_CHECKING:
    from autodeploy.evaluation.stages.inner_problem import Floats, InnerProblem, Ints, LayerClass

RELAXATION: Final = "each stage alone with its cheapest layers: its work and ramp, memory by the best option"


def relax_bound(problem: InnerProblem) -> float:
    """Lower bound on `step_s` [s] of every layout and every choice of options; inf when the layers fit on no layout."""
    return float(least_bound_s(batch_of(problem))[0]) + problem.tail_s


def relax_bounds(problem: InnerProblem, masks: Ints) -> Floats:
    """`relax_bound` for each set of options [sets, options], built into all layers: no choice is left [sets]."""
    return least_bound_s(batch_of(problem, masks)) + problem.tail_s


def room_for_layers(problem: InnerProblem, makespan_s: float = float("inf")) -> Ints:
    """Most layers that each stage can hold with everything recomputed or swapped, within a makespan [pp]."""
    return np.asarray(np.maximum(most_layers(batch_of(problem), makespan_s)[0], 0.0), dtype=np.int64)


def binding_stage(problem: InnerProblem) -> tuple[int, float]:
    """The stage with least memory for an even share of the layers with everything saved, and the bytes it lacks."""
    share = -(-problem.total_layers // problem.pp)
    batch = batch_of(problem)
    spare = (batch.room_bytes[..., None] - least_bytes(batch))[0, :, min(share, problem.total_layers)]
    stage = int(np.argmin(spare))
    return stage, max(0.0, -float(spare[stage]))


def batch_of(problem: InnerProblem, masks: Ints | None = None, *, empty_classes: bool = False) -> Batch:
    """One inner problem as a batch of one, without the classes that have no layers unless asked for.

    masks : instead one for each set of options [sets, options], built into all layers.
    """
    shares = hidden_shares(problem)
    forward, backward = shares[0] if shares else np.zeros((2, len(problem.classes)))
    n = 1 if masks is None else len(masks)
    nothing, empty = np.zeros(n), Choices.none(n)
    wanted = [i for i, layers in enumerate(problem.layers) if layers or empty_classes or not problem.total_layers]

    def part(
        cost: LayerClass,
        hidden_s: tuple[float, float] = (0.0, 0.0),
        choices: Choices = empty,
        on: tuple[Floats, Floats] = (nothing, nothing),
        place: tuple[int, int, int] = (1, 0, 0),
    ) -> Part:
        extra_s, saved = on
        return Part(
            nothing + cost.forward_s,
            cost.backward_s + extra_s,
            nothing + cost.static_bytes,
            cost.activation_bytes - saved,
            nothing + cost.tail_s,
            nothing + hidden_s[0],
            nothing + hidden_s[1],
            choices,
            *place,
        )

    def layer(i: int) -> Part:
        free = choices_of(problem.options, i) if masks is None else empty
        on = (nothing, nothing) if masks is None else _options_on(problem, masks, i)
        return part(problem.classes[i], (float(forward[i]), float(backward[i])), free, on, (problem.layers[i], 0, 0))

    return Batch(
        problem.schedule,
        problem.pp,
        problem.vpp,
        np.full(n, problem.micro_batches),
        tuple(layer(i) for i in wanted),
        tuple(part(piece.cost, place=(1, piece.stage, piece.chunk)) for piece in problem.pieces),
        np.broadcast_to(problem.limit_bytes - problem.fixed_bytes, (n, problem.pp)),
        nothing + problem.blocking_p2p_s,
        nothing + problem.p2p_s,
        problem.min_layers_per_chunk,
        most_layers_per_chunk(problem),
    )


def _options_on(problem: InnerProblem, masks: Ints, layer_class: int) -> tuple[Floats, Floats]:
    """Seconds added and bytes freed by each set's options on a layer of a class [sets]."""
    mine = [i for i, option in enumerate(problem.options) if option.layer_class == layer_class]
    extra_s, saved = ([getattr(problem.options[i], name) for i in mine] for name in ("extra_backward_s", "saved_bytes"))
    return masks[:, mine] @ np.array(extra_s), masks[:, mine] @ np.array(saved)
