"""Costs of layers and pieces as tables over the cuts of a sweep, in which its placements look them up."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.evaluation.layers.layer_cost import PhaseCost
from autodeploy.evaluation.layers.unit_costs import MODULE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autodeploy.evaluation.inputs.context import Context
    from autodeploy.evaluation.layers.layer_cost import LayerCost
    from autodeploy.evaluation.layers.unit_costs import UnitCosts
    from autodeploy.evaluation.stages.step_classes import Migration
    from cost_models.arrays import Floats, Ints

WORK_PARTS = tuple(field.name for field in fields(PhaseCost))
REPAIRS = ("norm", "activation", "mla_up_proj", "full")  # choices that stand for all in the order of candidates
# Bytes of a layer, and what uneven experts add to them.
MEMORY_COLUMNS = {
    "activation_bytes": "uneven_activation_bytes",
    **{f"{name}_saved_bytes": f"{name}_uneven_bytes" for name in REPAIRS},
}

_PLAIN_PIECE = MODULE - 1  # no place among layers that may migrate


@dataclass(frozen=True)
class CutTable:
    """What a kind of layers or a piece costs under every cut [n], by name.

    place : among layers that may migrate. fixed : what holds for all cuts. plain : [names, n]. moving : [names, 2 n],
    of which the second half is with migrated experts.
    """

    place: int
    fixed: dict[str, Floats]
    plain_names: tuple[str, ...]
    plain: Floats
    moving_names: tuple[str, ...]
    moving: Floats

    @classmethod
    def of(cls, costs: UnitCosts, place: int, context: Context, n: int, factor: float = 1.0) -> CutTable:
        """Of the cost at a place, times a factor."""
        cost = costs.mtp if place == MODULE else costs.layers[place]
        assert cost is not None
        return cls.of_cost(cost, costs.moved.get(place, cost), place, context, n, factor)

    @classmethod
    def of_cost(
        cls, cost: LayerCost, moved: LayerCost, place: int, context: Context, n: int, factor: float = 1.0
    ) -> CutTable:
        """Of a cost with and without migrated experts."""
        plain = _cost_columns(cost, context, layer=place >= 0)
        with_moved = plain if moved is cost else _cost_columns(moved, context, layer=place >= 0)
        fixed, of_cuts, moving = {}, {}, {}
        for name, values in plain.items():
            other = with_moved[name]
            if other is values and len(values) == 1:
                fixed[name] = values * factor
            elif not (values.any() or other.any()):
                fixed[name] = np.zeros(1)
            elif other is values:
                of_cuts[name] = values * factor
            else:
                moving[name] = np.concatenate([np.broadcast_to(each, (n,)) for each in (values, other)]) * factor
        return cls(place, fixed, tuple(of_cuts), _stacked(of_cuts, n), tuple(moving), _stacked(moving, 2 * n))

    def look_up(self, cut_of: Ints, moves: Mapping[int, Migration]) -> dict[str, Floats]:
        """Of placements, with migrated experts where they migrate."""
        found = {name: np.broadcast_to(values, cut_of.shape) for name, values in self.fixed.items()}
        found |= zip(self.plain_names, self.plain.take(cut_of, axis=1), strict=True)
        if self.moving_names:
            at = cut_of + self.moving.shape[1] // 2 * moves[self.place].where
            found |= zip(self.moving_names, self.moving.take(at, axis=1), strict=True)
        return found


def _stacked(columns: Mapping[str, Floats], n: int) -> Floats:
    return np.array(list(columns.values())).reshape(len(columns), n)


def cut_tables(costs: UnitCosts, context: Context, n: int) -> tuple[list[CutTable], dict[str, CutTable]]:
    """Of kinds of layers, and of pieces."""
    kinds = [CutTable.of(costs, place, context, n) for place in range(len(costs.layers))]
    ends = {"embedding": costs.embedding, "head": costs.head}
    pieces = {name: CutTable.of_cost(cost, cost, _PLAIN_PIECE, context, n) for name, cost in ends.items()}
    if costs.mtp is not None:
        pieces["mtp"] = CutTable.of(costs, MODULE, context, n, float(context.model.num_nextn_predict_layers))
    return kinds, pieces


def _cost_columns(cost: LayerCost, context: Context, *, layer: bool) -> dict[str, Floats]:
    """What a sweep reads of the cost of a layer or a piece; all of it adds up over layers."""
    slow = context.slowest_device_factor - 1.0
    forward, backward = cost.forward, cost.backward
    found = {
        "forward_s": _with_slow(forward, slow),
        "backward_s": _with_slow(backward, slow),
        "alone_s": cost.alone_s,
        "forward_compute_s": forward.compute_s,
        "backward_compute_s": backward.compute_s,
        **{name: np.asarray(getattr(forward, name) + getattr(backward, name)) for name in WORK_PARTS},
        "activation_bytes": cost.activation_bytes,
        "dense_params": cost.dense_params,
        "expert_params": cost.expert_params,
        "moved_params": cost.moved_params,
        "frozen_bytes": cost.frozen_bytes,
    }
    found["imbalance_s"] = found["imbalance_s"] + slow * found["compute_s"]
    if not layer:
        return found | {"workspace_bytes": cost.workspace_bytes, "passing_bytes": cost.passing_bytes}
    found |= {"split_s": cost.split_s, "covering_s": cost.covering_s}
    found["uneven_activation_bytes"] = np.asarray(cost.activation_bytes - cost.balanced_activation_bytes)
    for name in REPAIRS:
        choice = cost.choices.get(name)
        found[f"{name}_saved_bytes"] = np.zeros(1) if choice is None else choice.saved_bytes
        found[f"{name}_uneven_bytes"] = np.zeros(1) if choice is None else choice.uneven_bytes
        found[f"{name}_recompute_s"] = np.zeros(1) if choice is None else choice.recompute_s
    return found


def _with_slow(phase: PhaseCost, slow: float) -> Floats:
    """Seconds of a pass on the slowest device."""
    return np.asarray(phase.total_s + slow * phase.compute_s)
