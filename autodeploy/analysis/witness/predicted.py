"""Predicted state, messages and kept bytes of the first rank of each pipeline stage in one step."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.analysis.witness.documents import Counts, Message
from autodeploy.costs.layers.exchanges import COLLECTIVES, GATHERING
from autodeploy.costs.layers.layer_cost import launches
from autodeploy.costs.layers.unit_costs import layer_inputs, scalar_at
from autodeploy.costs.steps.estimate import Placed, applied_array
from autodeploy.costs.workload.memory_choices import CHOICES
from autodeploy.costs.workload.operators import group_of
from autodeploy.search import planner

if TYPE_CHECKING:
    from autodeploy.analysis.launch_checks.launch import Launch
    from autodeploy.costs.layers.exchanges import LayerInputs
    from autodeploy.search.ranking.one_strategy import Predicted
    from cost_models.arrays import Floats

ELEMENT_BYTES = 2
EVEN = {"routing_imbalance": 1.0, "routing_imbalance_peak": 1.0}


@dataclass(frozen=True)
class Prediction:
    """The prediction of a launch, by stage."""

    launch: Launch
    found: Predicted

    @classmethod
    def of(cls, launch: Launch) -> Prediction:
        """The prediction of the launch's strategy where every expert receives as many tokens."""
        strategy = launch.spec.strategy
        assert strategy is not None
        if launch.spec.model.is_moe:
            training = launch.spec.training.model_copy(update=EVEN)
            launch = replace(launch, spec=launch.spec.model_copy(update={"training": training}))
        return cls(launch, planner.predict(planner.prepare(launch.spec), strategy))

    @cached_property
    def placed(self) -> Placed:
        """The candidate under its layout."""
        return Placed.of(self.found.priced, self.found.layout)

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.placed.problem.pp

    def counts(self, stage: int) -> Counts:
        """All counts of a stage."""
        memory = self.found.estimate.memory
        dense, experts, frozen_bytes = (
            self.placed.chunk_sums(f"cost.{name}")[stage] for name in ("dense_params", "expert_params", "frozen_bytes")
        )
        return Counts(
            stage=stage,
            parameters=_whole(dense + experts + frozen_bytes / ELEMENT_BYTES),
            expert_parameters=_whole(experts),
            weight_bytes=round(memory["weights"][stage]),
            gradient_bytes=round(memory["gradients"][stage]),
            optimizer_bytes=round(self._optimizer_bytes(stage)),
            kept_bytes=round(memory["activations"][stage]),
            order=self._order(stage),
            messages=self._messages(stage),
        )

    def issued(self, stage: int) -> tuple[float, float]:
        """Operators that the host issues in all forward and all backward passes of a step, without exchanges, hooks of
        parameters among those of the backward passes; of a launch that computes nothing again.
        """
        rows = [(runs, operator) for layer, runs, _ in self._layers(stage) for operator in layer.table.operators]
        forward, backward = (
            sum(runs * scalar_at(np.asarray(launches(operator, backward=back)), 0) for runs, operator in rows)
            for back in (False, True)
        )
        return float(forward), float(backward)

    def _optimizer_bytes(self, stage: int) -> float:
        """Optimizer states of a stage wherever they lie: a framework that streams them has a buffer on the card."""
        strategy, host = self.launch.spec.strategy, float(self.placed.stage_sums("static.host")[stage])
        streamed = strategy is not None and strategy.swap_optimizer and not self.found.context.host.updates
        return host if streamed else host + float(self.found.estimate.memory["optimizer"][stage])

    def _order(self, stage: int) -> tuple[str, ...]:
        order = self.placed.problem.order
        words = []
        for slot in range(order.forward_chunk.shape[1]):
            forward, backward = order.forward_chunk[stage, slot], order.backward_chunk[stage, slot]
            word = f"F{forward}.{order.forward_micro_batch[stage, slot]}" if forward >= 0 else ""
            word += f"B{backward}.{order.backward_micro_batch[stage, slot]}" if backward >= 0 else ""
            if word:
                words.append(word)
        return tuple(words)

    def _messages(self, stage: int) -> tuple[Message, ...]:
        found: Counter[tuple[str, str, int]] = Counter()
        for layer, runs, again in self._layers(stage):
            collectives = GATHERING if self.launch_gathers else COLLECTIVES
            for exchange in layer.table.exchanges:
                group = group_of(exchange)
                if scalar_at(getattr(layer.groups, group).size, 0) <= 1:
                    continue
                forward, backward, replayed = (scalar_at(count, 0) for count in exchange.counts)
                copies = layer.table.choices_of(exchange) if exchange.kind in {"dispatch", "combine"} else 1.0
                size = round(copies * scalar_at(exchange.message_bytes, 0))
                operation = collectives[exchange.kind].replace("send_receive", "send")
                lane = "cp" if group in ("ring", "ulysses") else group
                replays = sum(n for name, n in again.items() if CHOICES[name].replays_exchange(exchange))
                found[lane, operation, size] += round(runs * (forward + backward) + replays * replayed)
            found.update(self._shards(layer, runs))
        found.update(self._sends(stage))
        return tuple(
            Message(group=g, operation=o, size_bytes=b, calls=n) for (g, o, b), n in sorted(found.items()) if n
        )

    def _shards(self, layer: LayerInputs, runs: float) -> dict[tuple[str, str, int], int]:
        """Gathers of a unit's sharded weights before each pass and reductions of its gradients behind the last one."""
        sharded = layer.features.sharded
        if sharded is None or sharded.through_step[0]:
            return {}
        gathers = round(runs * (1.0 if scalar_at(sharded.keeps_gathered, 0) else 2.0))
        found: Counter[tuple[str, str, int]] = Counter()
        dense = ("dp", layer.table.dense_params, sharded.gradient_bytes, sharded.dense, sharded.dense_copies)
        experts = ("edp", layer.table.expert_params, sharded.expert_gradient_bytes, sharded.expert)
        for lane, params, element_bytes, shards, copies in (dense, (*experts, sharded.expert_copies_group)):
            count = scalar_at(params, 0)
            if not count:
                continue
            reduced = count * scalar_at(element_bytes, 0)
            found[lane, "all_gather", round(count * ELEMENT_BYTES)] += gathers
            found[lane, "reduce_scatter", round(reduced)] += round(runs)
            if scalar_at(copies.size, 0) > 1:
                found["copies", "all_reduce", round(reduced / scalar_at(shards.size, 0))] += round(runs)
        return found

    @property
    def launch_gathers(self) -> bool:
        """Whether experts' tokens are gathered."""
        strategy = self.launch.spec.strategy
        return strategy is not None and strategy.moe_dispatcher == "allgather"

    def _layers(self, stage: int) -> list[tuple[LayerInputs, float, dict[str, float]]]:
        """Kinds of layers on a stage: how often a step runs them, and how often each choice of memory replays them."""
        problem, found = self.placed.problem, self.found
        runs = problem.chunk_micro_batches
        inputs = [layer for layer, _ in layer_inputs(found.context, found.candidate)]
        applied = applied_array(problem, found.layout)[0, stage]
        layers = self.placed.layers[0, stage].sum(axis=0)
        again: list[dict[str, float]] = [{} for _ in layers]
        for number, option in enumerate(problem.options):
            of_class = again[option.layer_class]
            of_class[option.name] = of_class.get(option.name, 0.0) + runs * float(applied[number])
        rows = [(inputs[n], runs * float(layers[n]), again[n]) for n in range(len(layers))]
        pieces = {step.name: layer for step, layer in zip(found.classes.pieces, inputs[len(layers) :], strict=False)}
        for piece in problem.pieces:
            if piece.stage == stage and piece.cost.name in pieces:
                rows.append((pieces[piece.cost.name], float(runs), {}))
        return rows

    def _sends(self, stage: int) -> dict[tuple[str, str, int], int]:
        """Activations to the next part of the model and gradients to the one before, where another stage has it."""
        problem, spec, candidate = self.placed.problem, self.launch.spec, self.found.candidate
        split = int(candidate.cp[0]) * int(candidate.tp[0] if candidate.sequence_parallel[0] else 1)
        tokens = spec.training.seq_length * int(candidate.micro_batch_size[0]) // split
        size = tokens * spec.model.hidden_size * ELEMENT_BYTES
        places = [part[0] for part in problem.parts]
        sends = sum((a[0] == stage) + (b[0] == stage) for a, b in itertools.pairwise(places) if a[0] != b[0])
        return {("pp", "send", size): sends * problem.chunk_micro_batches}


def _whole(values: Floats) -> tuple[int, ...]:
    return tuple(round(float(value)) for value in values)
