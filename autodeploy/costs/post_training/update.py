"""Training in a step of post-training: scoring the samples, and updating on them, on the trainers' cards."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar, Unpack

import numpy as np

from autodeploy.costs.post_training.samples import Trained, samples_of, training_too_large, update_context
from autodeploy.costs.post_training.weights import parameters_of
from autodeploy.costs.prediction_spread import Z80, run_in_context, spread_of
from autodeploy.costs.steps.one_strategy import (
    Phases,
    StepPhase,
    or_refusal,
    phase_cost,
    phase_costs,
    phase_costs_together,
    priced_by,
)
from autodeploy.costs.steps.scenarios import host_range
from autodeploy.kit.errors import SpecError
from autodeploy.specs.model import ModelSpec
from autodeploy.specs.strategy import Recompute
from cost_models.hand_over import STATES, WeightLayout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from autodeploy.costs.inputs.context import Context
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.costs.post_training.samples import Samples
    from autodeploy.costs.steps.one_strategy import Estimated, PhaseCost
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.rl import RlTraining
    from autodeploy.specs.strategy import Strategy
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

A = TypeVar("A")
B = TypeVar("B")
TRAINED_BYTES = 2.0  # of a weight as it is trained and handed over, in 16 bits
# Names of the memory of an estimate, by those of hand_over.STATES.
MEMORY_OF = {"optimizer": "optimizer", "gradients": "gradients", "parameters": "weights"}


@dataclass(frozen=True)
class TrainingPhase:
    """Seconds of a phase of training; the parts of `breakdown` add up to them, and `bound_by` is the largest."""

    seconds: float
    breakdown: dict[str, float]

    @property
    def bound_by(self) -> str:
        """The part that takes longest, the first of equals."""
        return max(self.breakdown, key=lambda name: self.breakdown[name])


@dataclass(frozen=True)
class UpdatePart:
    """Training's part of a step.

    phases : by name, in order. states : bytes of the dies of each stage by the names of STATES [pp]. peak_bytes : on
    the fullest card's die while it trains; limit_bytes : that it may use. tensor, pipeline, stage_ranks, expert : ranks
    that cut the dense part, the layers, share a stage, and hold the experts of a layer. trained, fullest : the policy's
    update on mean packs, and on the fullest.
    """

    npus: int
    phases: dict[str, TrainingPhase]
    states: dict[str, Floats]
    peak_bytes: float
    limit_bytes: float
    weights: WeightLayout
    machine: Machine
    host_link_bytes_per_s: float
    trained: Estimated
    fullest: Estimated

    @property
    def training_s(self) -> float:
        """Seconds of all phases."""
        return sum(phase.seconds for phase in self.phases.values())

    @property
    def dies(self) -> int:
        """Ranks that train."""
        return self.npus * self.machine.devices_per_npu

    @cached_property
    def half_width(self) -> float:
        """Relative half width of the 80 % interval of training's time: by how much it may be longer."""
        trained = self.trained
        context = trained.context
        run = run_in_context(trained.candidate, context, context.features)
        asymmetric = host_range(trained.candidate, context, trained.layout)
        spread = spread_of(context.family, run, asymmetric=asymmetric)
        return math.expm1(Z80 * spread.log_sigma + spread.log_shift)

    def left_bytes(self, offload: Collection[str]) -> float:
        """Bytes that stay on the fullest die while it generates [B]. offload : states that leave it."""
        return float(np.max(sum((self.states[name] for name in STATES if name not in offload), np.zeros(1))))

    def leaving_bytes(self, offload: Collection[str]) -> dict[str, float]:
        """Bytes of the states of the die that has most to move, by name [B]."""
        pages = sum((self.states[name] for name in offload), np.zeros_like(self.states[STATES[0]]))
        fullest = int(np.argmax(pages))
        return {name: float(self.states[name][fullest]) for name in STATES}


def update_part(
    model: ModelSpec,
    profile: Profile,
    cluster: ClusterSpec,
    rl: RlTraining,
    strategy: Strategy,
    *,
    npus: int,
    pack_tokens: int | None = None,
    features: frozenset[str] | None = None,
    **trained: Unpack[Trained],
) -> UpdatePart:
    """Training on `npus` cards of the cluster.

    strategy : of the update; forward passes run on the same degrees. pack_tokens : as of `samples_of`.
    features, trained : as of `update_context`.

    Raises SpecError if the strategy contradicts the cards, or a pack is shorter than a sample.

    Notes
    -----
    Log probabilities of the policy, of a reference model where there is one, a critic's values and updates (PPO), and
    a reward model's scores are forward passes over all samples. Weights of models that only score lie on the host, and
    come over its link each step. So do the states of policy and critic, in turn, where both do not fit.
    """
    asked = [(strategy, pack_tokens)]
    (part,) = update_parts(model, profile, cluster, rl, asked, npus=npus, features=features, **trained)
    if isinstance(part, SpecError):
        raise part
    return part


def update_parts(
    model: ModelSpec,
    profile: Profile,
    cluster: ClusterSpec,
    rl: RlTraining,
    asked: Sequence[tuple[Strategy, int | None]],
    *,
    npus: int,
    features: frozenset[str] | None = None,
    within_memory: bool = False,
    **trained: Unpack[Trained],
) -> list[UpdatePart | SpecError]:
    """`update_part` of several strategies and their `pack_tokens`, or what refuses them; layers are priced together.

    within_memory : of those whose policy alone needs more memory than a die has, that is said and no time predicted.
    """
    trainers = _Trainers(model, profile, cluster, rl, npus, features, trained)
    read = [or_refusal(partial(trainers.read, *each)) for each in asked]
    full = _then(read, partial(trainers.fullest, within_memory=within_memory))
    return _then(full, trainers.parts)


def _then(results: Sequence[A | SpecError], step: Callable[[list[A]], list[B | SpecError]]) -> list[B | SpecError]:
    """Results of a step applied to all that is not refused yet; refusals stay where they are."""
    made = iter(step([each for each in results if not isinstance(each, SpecError)]))
    return [each if isinstance(each, SpecError) else next(made) for each in results]


@dataclass(frozen=True)
class _Read:
    """A strategy with its packs: of mean length in both phases, and the fullest of an update, whose memory counts."""

    strategy: Strategy
    samples: Samples
    mean: Phases
    full: Phases


@dataclass(frozen=True)
class _Trainers:
    """Cards that train, and what they train."""

    model: ModelSpec
    profile: Profile
    cluster: ClusterSpec
    rl: RlTraining
    npus: int
    features: frozenset[str] | None
    trained: Trained

    def context(self, model: ModelSpec, strategy: Strategy, samples: Samples) -> Context:
        """Of an update of a model on these samples."""
        return update_context(
            *(model, self.profile, self.cluster, strategy, samples),
            npus=self.npus,
            features=self.features,
            **self.trained,
        )

    def read(self, strategy: Strategy, pack_tokens: int | None) -> _Read:
        """A strategy that the cards can run.

        Raises SpecError as of `update_part`.
        """
        dp = max(1, self.npus * self.profile.devices_per_npu // (strategy.tp * strategy.pp * strategy.cp))
        samples = samples_of(self.rl, strategy, dp, pack_tokens)
        update = StepPhase("update", samples.update_rows, self.rl.updates_per_step)
        mean = Phases(
            [StepPhase("forward", samples.rows), update], strategy, self.context(self.model, strategy, samples)
        )
        mean.candidates()
        longest = replace(samples, tokens=samples.full_tokens)
        full = Phases([update], strategy, self.context(self.model, strategy, longest))
        return _Read(strategy, samples, mean, full)

    def fullest(self, read: Sequence[_Read], *, within_memory: bool) -> list[tuple[_Read, PhaseCost] | SpecError]:
        """With the cost of the fullest packs."""
        results: list[tuple[_Read, PhaseCost] | SpecError] = []
        for one, costs in zip(read, _priced([each.full for each in read]), strict=True):
            if isinstance(costs, SpecError):
                results.append(costs)
                continue
            peak, limit = float(np.max(costs[0].estimated.estimate.card_bytes)), one.full.context.limit_bytes
            results.append(training_too_large(peak, limit) if within_memory and peak > limit else (one, costs[0]))
        return results

    def parts(self, full: Sequence[tuple[_Read, PhaseCost]]) -> list[UpdatePart | SpecError]:
        """With the cost of mean packs."""
        costs = _priced([each.mean for each, _ in full])
        return [
            both if isinstance(both, SpecError) else or_refusal(partial(self.part, one, fullest, *both))
            for (one, fullest), both in zip(full, costs, strict=True)
        ]

    def part(self, one: _Read, full: PhaseCost, scored: PhaseCost, trained: PhaseCost) -> UpdatePart:
        """Of a strategy whose own phases are priced, with those of the other models."""
        rl, model, strategy, samples, context = self.rl, self.model, one.strategy, one.samples, one.mean.context
        forward, update = one.mean.phases
        estimate = full.estimated.estimate
        states = {name: estimate.memory[kind].copy() for name, kind in MEMORY_OF.items()}
        peak = float(np.max(estimate.card_bytes))
        link = float(np.max(context.machine.host.link_bytes_per_s))
        phases = {"log_probabilities": _phase(scored)}
        if rl.reference_model:
            phases["reference"] = _loaded(scored, float(np.max(states["parameters"])), link)
        if rl.algorithm == "ppo":
            critic = rl.critic if isinstance(rl.critic, ModelSpec) else model
            how = strategy if critic is model else fitted_to(strategy, critic)
            context_of_critic = context if critic is model else self.context(critic, how, samples)
            valued, step = (
                (scored, trained) if critic is model else phase_costs([forward, update], how, context_of_critic)
            )
            phases["values"] = _phase(valued)
            phases["critic_update"] = _phase(step)
            memory = step.estimated.estimate.memory
            beside = float(np.max(sum(memory[kind] for kind in MEMORY_OF.values())))
            if peak + beside <= context.limit_bytes:
                peak += beside
            else:  # each is on the device while it is at work
                own = float(np.max(sum(states.values())))
                phases["critic_update"] = _moved(phases["critic_update"], 2.0 * (own + beside) / link)
                peak = max(peak, float(np.max(step.estimated.estimate.card_bytes)))
            for name, kind in MEMORY_OF.items():
                states[name] = states[name] + float(np.max(memory[kind]))
        if isinstance(rl.reward, ModelSpec):
            how = fitted_to(strategy, rl.reward)
            reward = phase_cost(forward, how, self.context(rl.reward, how, samples))
            phases["reward"] = _loaded(reward, float(np.max(reward.estimated.estimate.memory["weights"])), link)
        phases["update"] = _phase(trained)
        return UpdatePart(
            npus=self.npus,
            phases=phases,
            states=states,
            peak_bytes=peak,
            limit_bytes=context.limit_bytes,
            weights=_weights(model, trained),
            machine=context.machine,
            host_link_bytes_per_s=link,
            trained=trained.estimated,
            fullest=full.estimated,
        )


def _priced(asked: Sequence[Phases]) -> list[list[PhaseCost] | SpecError]:
    """Costs of phases, together where they can be."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for row, phases in enumerate(asked):
        alike.setdefault(priced_by(phases.context), []).append(row)
    costs: dict[int, list[PhaseCost] | SpecError] = {}
    for rows in alike.values():
        costs.update(zip(rows, phase_costs_together([asked[row] for row in rows]), strict=True))
    return [costs[row] for row in range(len(asked))]


def fitted_to(strategy: Strategy, model: ModelSpec) -> Strategy:
    """The same degrees for another model: what it has no layers or experts for gives way."""
    pp = min(strategy.pp, model.num_hidden_layers)
    ep = math.gcd(strategy.ep, model.n_routed_experts or 1) if model.is_moe else 1
    return strategy.model_copy(
        update={
            "pp": pp if pp == strategy.pp else math.gcd(pp, strategy.pp),
            "vpp": 1,
            "dp": None,
            "ep": ep,
            "etp": strategy.etp if ep == strategy.ep else None,
            "schedule": "1f1b",
            "layers_per_stage": None,
            "recompute": Recompute(granularity=strategy.recompute.granularity, modules=strategy.recompute.modules),
            "swap": (),
            "swap_per_stage": None,
        }
    )


def _phase(cost: PhaseCost) -> TrainingPhase:
    return TrainingPhase(cost.seconds, cost.breakdown)


def _loaded(cost: PhaseCost, weight_bytes: float, link_bytes_per_s: float) -> TrainingPhase:
    """A forward pass of a model whose weights come from the host first."""
    return _moved(_phase(cost), weight_bytes / link_bytes_per_s)


def _moved(phase: TrainingPhase, seconds: float) -> TrainingPhase:
    """A phase that waits so long for moves over the host link."""
    parts = {**phase.breakdown, "exposed_swap_s": phase.breakdown["exposed_swap_s"] + seconds}
    return TrainingPhase(phase.seconds + seconds, parts)


def _weights(model: ModelSpec, trained: PhaseCost) -> WeightLayout:
    c = trained.estimated.candidate
    dense, experts = parameters_of(model)
    return WeightLayout(
        dense=dense,
        experts=experts,
        tensor=float(c.tp[0]),
        pipeline=float(c.pp[0]),
        expert=float(c.ep[0] * c.etp[0]),
        weight_bytes=TRAINED_BYTES,
    )
