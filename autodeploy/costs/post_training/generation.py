"""Generation's part of a step of post-training: one layout of the engine, on some cards, beside what training left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import ceil, floor, log2
from typing import TYPE_CHECKING

import numpy as np

from autodeploy.costs.inputs.build_context import device_of
from autodeploy.costs.post_training.generator import generator_of
from autodeploy.costs.post_training.overheads import OTHER, overheads_of
from autodeploy.costs.post_training.samples import InfeasibleRlError, lengths_of
from autodeploy.costs.post_training.weights import generating_weights
from autodeploy.messages import Message
from autodeploy.stack.frameworks import ENGINES
from cost_models.hbm import GIB
from cost_models.rollout import rollout
from cost_models.rollout_batch import Engines
from cost_models.rollout_slots import held_tokens, slots

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodeploy.costs.post_training.generator import Generator
    from autodeploy.costs.post_training.overheads import Overheads
    from autodeploy.specs.cluster import ClusterSpec
    from autodeploy.specs.model import ModelSpec
    from autodeploy.specs.rl import GenerationLayout, RlTraining
    from cost_models.arrays import Floats, Number
    from cost_models.generation import Generation
    from cost_models.hand_over import WeightLayout
    from cost_models.response_lengths import Lengths
    from cost_models.rollout import Rollout
    from hardware_profiles.profile import Profile

PARTS_OF_PARTIAL = 2  # steps over which a response extends in a synchronous partial rollout
LAYOUT_PATH = "/strategy/rl/generation"
MOST_OF_MEMORY = 0.95  # of a device, that an engine takes: what it does not count needs the rest


@dataclass(frozen=True, slots=True)
class Case:
    """Place of generation. npus : cards. left_bytes : of training's, on each die. staleness, partial : as of
    `RlStrategy`.
    """

    npus: int
    left_bytes: float = 0.0
    staleness: int = 0
    partial: bool = False

    @property
    def parts(self) -> tuple[int, ...]:
        """Steps whose responses run at the same time: at least, and one more where the bound allows it."""
        if self.staleness > 0:
            return (self.staleness, self.staleness + 1)
        return (PARTS_OF_PARTIAL,) if self.partial else (1,)


@dataclass(frozen=True)
class Series:
    """The batch over the time of generation: seconds at which each stretch ends, the fullest rank's and the mean batch.

    tail_s : at the end, in which the last tenth of the responses runs.
    """

    ends_s: Floats
    batch: Floats
    mean_batch: Floats
    tail_s: float


@dataclass(frozen=True)
class GenerationPart:
    """Generation's part of a step.

    generation_s : of a step's responses; ahead_s : where those of one step more run at once, None where nothing runs
    ahead. steady_s : in full batches that never drain. tpot_ms : of `batch_per_replica` sequences of a data-parallel
    rank, the fullest as the step begins. waves : responses a slot. kv_bytes : of a die, keys and values at most.
    peak_bytes : on a die, what training left included; limit_bytes : of the die. parts : steps whose responses run at
    the same time. half_width : relative, of the 80 % interval of a time per output token.
    """

    case: Case
    layout: GenerationLayout
    generation_s: float
    ahead_s: float | None
    steady_s: float
    tpot_ms: float
    batch_per_replica: float
    waves: float
    kv_bytes: float
    longest_s: float
    tail_share: float
    replicas: float
    parts: int
    bound_by: str
    peak_bytes: float
    limit_bytes: float
    weights: WeightLayout
    generator: Generator
    series: Series


@dataclass(frozen=True)
class _Place:
    """The engines of a case: replicas that step on their own, their ranks, responses and slots of a rank."""

    case: Case
    units: float
    ranks: float
    responses: float
    slots: tuple[float, ...]  # by `case.parts`
    kv_tokens: float


def generation_part(
    model: ModelSpec,
    profile: Profile,
    cluster: ClusterSpec,
    rl: RlTraining,
    layout: GenerationLayout,
    case: Case,
    *,
    overheads: Overheads | None = None,
) -> GenerationPart:
    """One case of `generations`.

    Raises InfeasibleRlError if the cards are no whole number of replicas, or no response fits beside the weights.
    """
    (part,) = generations(model, profile, cluster, rl, [(layout, case)], overheads=overheads)
    if isinstance(part, InfeasibleRlError):
        raise part
    return part


def generations(
    model: ModelSpec,
    profile: Profile,
    cluster: ClusterSpec,
    rl: RlTraining,
    asked: Sequence[tuple[GenerationLayout, Case]],
    *,
    overheads: Overheads | None = None,
) -> list[GenerationPart | InfeasibleRlError]:
    """Generation of a step's responses in several cases at once, by layouts that `limited_alike` makes equal.

    overheads : of the framework; None: what is usual.

    Notes
    -----
    Prompts are dispatched whole, so that the responses of one are on one rank where that has as many. Without experts,
    or with experts that are cut like all else, each data-parallel rank is a replica on its own; else the ranks over
    which experts lie step together.

    Raises UnsupportedError if the device has no products in the precision.
    """
    adds = overheads or overheads_of(OTHER)
    device = device_of(profile, cluster)
    first = asked[0][0]
    generator, usable = _inside(generator_of(model, profile, device, first), adds), device.usable_hbm_bytes
    lengths, prompt = lengths_of(rl), rl.prompt_length.mean_tokens
    answers: list[GenerationPart | InfeasibleRlError | None] = [None] * len(asked)
    places: dict[tuple[int, int, bool], list[tuple[int, _Place]]] = {}
    for number, (layout, case) in enumerate(asked):
        try:
            place = _place(generator.model, layout, rl, lengths, profile.devices_per_npu, case, model, usable)
        except InfeasibleRlError as error:
            answers[number] = error
            continue
        group_size = _together(rl, place.responses)
        for at, parts in enumerate(case.parts):
            key = (parts, group_size, case.partial or not case.staleness)
            places.setdefault(key, []).append((number * 2 + at, place))
    done: dict[int, tuple[Rollout, int, _Place]] = {}
    for (parts, group_size, again), members in places.items():
        engines = Engines.of(
            np.array([place.responses for _, place in members]),
            np.array([place.slots[number % 2] for number, place in members]),
            np.array([place.ranks for _, place in members]),
            np.array([place.units for _, place in members]),
        )
        made = rollout(
            engines,
            lengths,
            prompt,
            partial(_tpot_s, generator.model, adds),
            partial(generator.model.prefill_s, length=prompt),
            correlation=rl.prompt_correlation,
            group_size=group_size,
            parts=parts,
            prefill_kept=again,
            by_group=first.ep > 1,
        )
        done.update((number, (made, row, place)) for row, (number, place) in enumerate(members))
    weights = generating_weights(model, first)
    fit = [number for number, answer in enumerate(answers) if answer is None]
    found = [[done[2 * number + at] for at in range(len(asked[number][1].parts))] for number in fit]
    batches = np.maximum(1.0, [made.start_batch[row] for (made, row, _), *_ in found])
    token_s = generator.model.parts_s(batches, prompt + lengths.mean_square / (2.0 * lengths.mean))
    token_s["host_s"] = adds.sequence_s * batches
    for row, number in enumerate(fit):
        own = {name: float(seconds[row]) for name, seconds in token_s.items()}
        answers[number] = _part(generator, asked[number][0], weights, lengths, rl, usable, found[row], own)
    return [each for each in answers if each is not None]


def limited_alike(layout: GenerationLayout) -> GenerationLayout:
    """The layout with no limit to its sequences but the engine's own, to which nothing but the batch owes anything."""
    return layout.model_copy(update={"max_num_seqs": None})


def _inside(generator: Generator, overheads: Overheads) -> Generator:
    """The engine as it runs inside a framework, whose host issues a layer's operators slower."""
    if generator.mode != "eager" or overheads.eager_layer == 1.0:
        return generator
    rates = generator.model.rates
    slower = replace(rates, layer_s=rates.layer_s * overheads.eager_layer)
    return replace(generator, model=replace(generator.model, rates=slower))


def _tpot_s(
    model: Generation, overheads: Overheads, batch: Number, context: Number, group_batch: Number | None = None
) -> Floats:
    """Seconds of a step of decoding inside a framework, which has its host look at each sequence's token."""
    host = overheads.sequence_s * np.asarray(batch, dtype=np.float64)
    return np.asarray(model.tpot_s(batch, context, group_batch) + host)


def _together(rl: RlTraining, responses: float) -> int:
    """Responses of a prompt on one rank."""
    return int(min(rl.responses_per_prompt, responses))


def _place(
    generation: Generation,
    layout: GenerationLayout,
    rl: RlTraining,
    lengths: Lengths,
    devices_per_npu: int,
    case: Case,
    model: ModelSpec,
    usable: float,
) -> _Place:
    dies, together_dp = case.npus * devices_per_npu, layout.ep > 1 and model.is_moe
    ranks = layout.dp if together_dp else 1
    unit = layout.tp * ranks
    if dies % unit or dies < unit:
        cards = max(1, round(dies / unit)) * unit / devices_per_npu
        raise InfeasibleRlError(
            Message("post_training.partial_replicas", dies=dies, unit=unit),
            rule="generation_cards",
            path=f"{LAYOUT_PATH}/tp",
            hint=Message("post_training.dividing_degrees", cards=ceil(cards), dies=dies),
        )
    units = dies // unit
    responses = float(ceil(rl.samples / (units * ranks)))
    longest = rl.prompt_length.mean_tokens + lengths.longest
    space = generation.cache_space_bytes - case.left_bytes
    tokens = space / (float(generation.cache_bytes(longest)) / longest)
    group_size = _together(rl, responses)
    limit = float(layout.max_num_seqs or ENGINES[layout.engine].max_num_seqs)
    fit = tuple(
        float(slots(parts * responses, tokens, limit, lengths, rl.prompt_length.mean_tokens, group_size))
        for parts in case.parts
    )
    if min(fit) < 1.0:
        raise _no_room(generation, layout, case, space, longest, usable)
    busy = max(1.0, rl.samples / (responses * ranks))
    return _Place(case, min(float(units), busy), float(ranks), responses, fit, tokens)


def _no_room(
    generation: Generation, layout: GenerationLayout, case: Case, space: float, longest: float, usable: float
) -> InfeasibleRlError:
    """Says what is missing for one response, and the nearest change that makes room."""
    needed = float(generation.cache_bytes(longest))
    fraction = layout.memory_fraction or ENGINES[layout.engine].memory_fraction
    enough = ceil(100.0 * (fraction + (needed - space) / usable)) / 100.0
    path = f"{LAYOUT_PATH}/{'memory_fraction' if enough <= MOST_OF_MEMORY or space > 0.0 else 'tp'}"
    if enough <= MOST_OF_MEMORY:
        hint = f"memory_fraction={enough:g}"
    elif case.left_bytes > needed - space:
        hint = Message("post_training.more_states_in_offload")
    elif space > 0.0:
        hint = Message("post_training.shorter_responses", tokens=floor(longest * space / needed))
    else:
        room = space + generation.weights_bytes
        ranks = layout.tp * 2 ** ceil(log2(generation.weights_bytes / room)) if room > 0.0 else 2 * layout.tp
        hint = Message("post_training.higher_tp_or_ep", tp=ranks)
    if space > 0.0:
        return InfeasibleRlError(
            Message("post_training.response_exceeds_cache", tokens=longest, needed=needed / GIB, left=space / GIB),
            rule="generation_kv",
            path=path,
            hint=hint,
            share=space / needed,
        )
    return InfeasibleRlError(
        Message("post_training.weights_exceed_die", weights=generation.weights_bytes / GIB, left=case.left_bytes / GIB),
        rule="generation_weights",
        path=path,
        hint=hint,
        share=(space + generation.weights_bytes) / generation.weights_bytes,
    )


def _part(
    generator: Generator,
    layout: GenerationLayout,
    weights: WeightLayout,
    lengths: Lengths,
    rl: RlTraining,
    usable_bytes: float,
    rows: Sequence[tuple[Rollout, int, _Place]],
    token_s: dict[str, float],
) -> GenerationPart:
    """The part of a layout; token_s : of an output token as a step begins, by part."""
    made, row, place = rows[0]
    prompt, model = rl.prompt_length.mean_tokens, generator.model
    group_size = _together(rl, place.responses)
    at_once, queued = held_tokens(lengths, prompt, group_size)
    running = min(place.slots[0], place.case.parts[0] * place.responses)
    kv_tokens_held = float(at_once if running >= place.case.parts[0] * place.responses else queued) * running
    per_token = place.kv_tokens and (model.cache_space_bytes - place.case.left_bytes) / place.kv_tokens
    taken = usable_bytes * (layout.memory_fraction or ENGINES[layout.engine].memory_fraction)
    return GenerationPart(
        case=place.case,
        layout=layout,
        generation_s=float(made.generation_s[row]),
        ahead_s=float(rows[1][0].generation_s[rows[1][1]]) if len(rows) > 1 else None,
        steady_s=float(made.steady_s[row]),
        tpot_ms=1e3 * sum(token_s.values()),
        batch_per_replica=max(1.0, float(made.start_batch[row])),
        waves=float(made.waves[row]),
        kv_bytes=min(kv_tokens_held, place.kv_tokens) * per_token,
        longest_s=float(made.longest_s[row]),
        tail_share=float(made.tail_share[row]),
        replicas=place.units,
        parts=place.case.parts[0],
        bound_by=max(token_s, key=lambda name: token_s[name]),
        peak_bytes=taken,
        limit_bytes=usable_bytes,
        weights=weights,
        generator=generator,
        series=Series(made.ends_s[row], made.batch[row], made.mean_batch[row], float(made.tail_s[row])),
    )
