"""One step of post-training: training, generation and hand-over where the placement lets them run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Literal

from autodeploy.costs.inputs.build_context import device_of, healthy_npus, topology_of
from autodeploy.costs.inputs.machine import machine_of
from autodeploy.costs.post_training.overheads import OTHER, overheads_of
from autodeploy.costs.post_training.samples import InfeasibleRlError, lengths_of, training_too_large
from autodeploy.costs.post_training.weights import resharded_s, sent_s
from autodeploy.kit.errors import SpecError
from autodeploy.messages import Message
from autodeploy.specs.cluster import ClusterSpec
from autodeploy.specs.plan_details import RlPhase
from cost_models.hand_over import host_moves_s
from cost_models.hbm import GIB
from cost_models.placements import AFTER_TRAINING, asynchronous, colocated, separate, tokens_per_s

if TYPE_CHECKING:
    from autodeploy.costs.inputs.machine import Machine
    from autodeploy.costs.post_training.generation import GenerationPart, Series
    from autodeploy.costs.post_training.overheads import Overheads
    from autodeploy.costs.post_training.update import UpdatePart
    from autodeploy.costs.steps.one_strategy import Estimated
    from autodeploy.specs.rl import RlStrategy, RlTraining
    from cost_models.arrays import Number
    from cost_models.placements import Step
    from hardware_profiles.generation import Mode
    from hardware_profiles.profile import Profile

NoteKind = Literal["mode_assumed", "mean_absent", "numbers_of_another", "experts", "best_split", "blocked"]
ONLOAD = "onload_training"
MEAN_HALF_WIDTH = 0.4  # relative, of a step whose mean length of responses nobody said; own judgement
PREPARATION = "preparation"
MOVE_PART, HOST_PART = "exposed_swap_s", "host_bound_s"
GENERATION_PART, HAND_OVER_PART = "generation_s", "hand_over_s"


@dataclass(frozen=True, slots=True)
class Note:
    """A note for readers of the prediction."""

    kind: NoteKind
    text: str


@dataclass(frozen=True)
class RlStep:
    """Prediction of a step.

    generation : tpot_ms, batch_per_replica, waves, kv_gib, longest_s, tail_share. samples_in_flight : responses begun
    and not yet trained on, at most. blocked_s : that all wait for the longest response under a staleness bound.
    tokens_per_s : of all cards, by the three rules of counting. peak_memory_bytes : of the fullest die, while it
    generates and while it trains. breakdown : seconds by part, that add up to the step. generation_npus : cards that
    generate; None: all. mode : in which the engine decodes. update : training's part. generator_half_width : relative,
    of the 80 % interval of generation's time; mean_half_width : of what the mean length of responses leaves open.
    """

    phases: tuple[RlPhase, ...]
    step_time_s: float
    generation: dict[str, float]
    hand_over_s: float
    samples_in_flight: float
    blocked_s: float
    tokens_per_s: dict[str, float]
    peak_memory_bytes: dict[str, float]
    breakdown: dict[str, float]
    notes: tuple[Note, ...]
    generation_npus: int | None
    mode: Mode
    series: Series
    update: UpdatePart
    generator_half_width: float
    mean_half_width: float

    @property
    def fullest(self) -> Estimated:
        """The update on the fullest packs, whose memory counts."""
        return self.update.fullest

    @cached_property
    def half_width(self) -> float:
        """Relative half width of the 80 % interval of the step's time."""
        trained = sum(phase.exposed_s for phase in self.phases if phase.name in self.update.phases)
        return math.hypot(
            self.breakdown[GENERATION_PART] / self.step_time_s * self.generator_half_width,
            trained / self.step_time_s * self.update.half_width,
            self.mean_half_width,
        )

    @property
    def interval_s(self) -> tuple[float, float]:
        """80 % interval of the step's time."""
        return self.step_time_s / (1.0 + self.half_width), self.step_time_s * (1.0 + self.half_width)


def combined(
    update: UpdatePart,
    generation: GenerationPart,
    rl: RlTraining,
    layout: RlStrategy,
    *,
    profile: Profile,
    cluster: ClusterSpec,
    overheads: Overheads | None = None,
    beyond_memory: bool = False,
) -> RlStep:
    """A step of an update and of generation, each on its own cards, or both on the same.

    layout : placement, staleness, partial rollout and offload; its split is that of the parts.
    overheads : of the framework; None: what is usual. Its time of the host is the phase `preparation` of training.
    beyond_memory : also a step that needs more memory than a die has.

    Raises InfeasibleRlError if training or the moment of the hand-over needs more memory than a die has.
    """
    if layout.placement == "colocated" and update.npus != generation.case.npus:
        raise ValueError("colocated, training and generation have the same cards")
    peaks = _peaks(update, generation, layout, beyond_memory=beyond_memory)
    adds = overheads or overheads_of(OTHER)
    hand_over = hand_over_s(update, generation, layout, adds, profile=profile, cluster=cluster)
    step = placed(update, generation, rl, layout, adds, hand_over)
    return _result(update, generation, rl, layout, step, hand_over, peaks)


def hand_over_s(
    update: UpdatePart,
    generation: GenerationPart,
    layout: RlStrategy,
    overheads: Overheads,
    *,
    profile: Profile,
    cluster: ClusterSpec,
) -> float:
    """Seconds until the cards that generate have the weights."""
    whole = overheads.gathers
    if layout.placement == "colocated":
        return resharded_s(update.weights, generation.weights, update.machine, update.dies, whole=whole)
    machine = joint_machine(profile, cluster)
    return sent_s(update.weights, generation.weights, machine, update.dies, generation.replicas, whole=whole)


def placed(
    update: UpdatePart,
    generation: GenerationPart,
    rl: RlTraining,
    layout: RlStrategy,
    overheads: Overheads,
    hand_over: float,
    *,
    training: Number = 1.0,
    generating: Number = 1.0,
) -> Step:
    """The phases of a step where the placement lets them run.

    training, generating : factors of what training and generation take, one or [n]; what the framework adds and moves
        between memories keep theirs.
    """
    trained: dict[str, Number] = {PREPARATION: overheads.step_s}
    trained |= {name: phase.seconds * training for name, phase in update.phases.items()}
    generated = generation.generation_s * generating
    samples = float(rl.samples)
    if layout.placement == "colocated":
        link = update.host_link_bytes_per_s * overheads.host_copy
        away = host_moves_s(update.leaving_bytes(layout.offload), layout.offload, link)
        moves: dict[str, Number] = {ONLOAD: away, AFTER_TRAINING[0]: away} if layout.offload else {}
        kept = samples * (generation.parts - 1)
        return colocated(generated, hand_over, trained, samples, moves=moves, kept_samples=kept)
    if layout.placement == "separate" or layout.staleness == 0:
        return separate(generated, hand_over, trained, samples * generation.parts)
    return asynchronous(
        generated,
        hand_over,
        trained,
        samples,
        layout.staleness,
        ahead_s=None if generation.ahead_s is None else generation.ahead_s * generating,
        steady_s=generation.steady_s * generating,
    )


def joint_machine(profile: Profile, cluster: ClusterSpec) -> Machine:
    """All cards of a cluster, trainers and generators."""
    return _joint_machine(profile, cluster.model_dump_json())


@lru_cache(maxsize=8)  # a search joins parts on one cluster thousands of times
def _joint_machine(profile: Profile, document: str) -> Machine:
    cluster = ClusterSpec.model_validate_json(document)
    topology = topology_of(profile, cluster, healthy_npus(profile, cluster))
    if topology.leaf_grain:
        message = Message("post_training.leaf_switches_unmodelled")
        hint = Message("post_training.leave_out_leaf")
        raise SpecError(message, path="/cluster/profile" if cluster.leaf is None else "/cluster/leaf", hint=hint)
    return machine_of(profile, device_of(profile, cluster), topology, "bf16")


def _peaks(
    update: UpdatePart, generation: GenerationPart, layout: RlStrategy, *, beyond_memory: bool
) -> dict[str, float]:
    """Bytes of the fullest die while it generates, hand-over included, and while it trains."""
    training = update.peak_bytes
    if training > update.limit_bytes and not beyond_memory:
        raise training_too_large(training, update.limit_bytes)
    peak = generation.peak_bytes
    if layout.placement == "colocated":
        kept = frozenset(layout.offload) - {"parameters"}
        both = update.left_bytes(kept) + float(generation.weights.die_bytes)
        peak = max(peak, both)
        if both > generation.limit_bytes and not beyond_memory:
            raise InfeasibleRlError(
                Message("post_training.hand_over_exceeds_die", needed=both / GIB, limit=generation.limit_bytes / GIB),
                rule="hand_over_memory",
                path="/strategy/rl/offload",
                hint=Message("post_training.offload_or_higher_tp"),
            )
    return {"generation": peak, "update": training}


def _exposed(update: UpdatePart, generation: GenerationPart, step: Step) -> tuple[list[RlPhase], dict[str, float]]:
    """Phases of a step, and by part the seconds in which nothing hides it."""
    phases = []
    breakdown: dict[str, float] = {}

    def add(part: str, seconds: float) -> None:
        breakdown[part] = breakdown.get(part, 0.0) + seconds

    for each in step.phases:
        exposed, bound = float(each.exposed_s), "host_link"
        if each.name in update.phases:
            phase = update.phases[each.name]
            bound = phase.bound_by
            for part, seconds in phase.breakdown.items():
                add(part, seconds * exposed / phase.seconds if phase.seconds else 0.0)
        elif each.name == "generation":
            bound = generation.bound_by
            add(GENERATION_PART, exposed)
        elif each.name == PREPARATION:
            bound = "host"
            add(HOST_PART, exposed)
        elif each.name == "hand_over":
            bound = "links"
            add(HAND_OVER_PART, exposed)
        else:
            add(MOVE_PART, exposed)
        ends = {"start_s": float(each.start_s), "end_s": float(each.end_s)}
        phases.append(RlPhase(name=each.name, **ends, exposed_s=exposed, devices=each.devices, bound_by=bound))
    assert {phase.name for phase in step.phases} >= set(update.phases)
    return phases, breakdown


def _result(
    update: UpdatePart,
    generation: GenerationPart,
    rl: RlTraining,
    layout: RlStrategy,
    step: Step,
    hand_over: float,
    peaks: dict[str, float],
) -> RlStep:
    phases, breakdown = _exposed(update, generation, step)
    total = float(step.step_s)
    return RlStep(
        phases=tuple(phases),
        step_time_s=total,
        generation={
            "tpot_ms": generation.tpot_ms,
            "batch_per_replica": generation.batch_per_replica,
            "waves": generation.waves,
            "kv_gib": generation.kv_bytes / GIB,
            "longest_s": generation.longest_s,
            "tail_share": generation.tail_share,
        },
        hand_over_s=hand_over,
        samples_in_flight=float(step.samples_in_flight),
        blocked_s=float(step.blocked_s),
        tokens_per_s=counted(rl, total),
        peak_memory_bytes=peaks,
        breakdown=breakdown,
        notes=_notes(generation, rl),
        generation_npus=None if layout.placement == "colocated" else generation.case.npus,
        mode=generation.generator.mode,
        series=generation.series,
        update=update,
        generator_half_width=generation.generator.half_width,
        mean_half_width=MEAN_HALF_WIDTH if rl.response_length.mean_is_assumed else 0.0,
    )


def counted(rl: RlTraining, step_time_s: float) -> dict[str, float]:
    """Tokens a second of all cards, by the three rules of counting."""
    lengths, prompt = lengths_of(rl), rl.prompt_length
    rates = tokens_per_s(
        rl.samples,
        step_time_s,
        prompt_mean=prompt.mean_tokens,
        prompt_max=prompt.max_tokens,
        response_mean=lengths.mean,
        response_max=lengths.longest,
    )
    return {rule: float(rate) for rule, rate in rates.items()}


def _notes(generation: GenerationPart, rl: RlTraining) -> tuple[Note, ...]:
    notes = [Note(kind, text) for kind, text in generation.generator.assumed().items()]
    if rl.response_length.mean_is_assumed:
        notes.append(Note("mean_absent", Message("post_training.no_mean_length")))
    return tuple(notes)
