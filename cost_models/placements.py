"""Placements of the phases of a step: all on the same devices, on two sets in turn, or on two sets at once.

Phases overlap only where the placement says so. Each tells how much of it is exposed; that adds up to the step. All
times are arrays [n], one value per layout.

Parameters
----------
name : of a phase.
start_s, end_s : of a phase.
devices : on which a phase runs.
exposed_s : what of a phase makes the step longer.
step_s : of the whole step.
hand_over_s : of the weights from training to generation.
staleness : by which generation may be ahead of training [updates].
training_s : of what trains, together.
prompt_mean, prompt_max, response_mean, response_max : lengths in a step [tokens].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cost_models.arrays import Floats, Number

Devices = Literal["all", "generation", "training"]

# What a device does with its memory around generation, before and after it, in the order of a step.
BEFORE_GENERATION = ("onload_generation",)
AFTER_GENERATION = ("offload_generation", "onload_training")
AFTER_TRAINING = ("offload_training",)
MOVES = (*BEFORE_GENERATION, *AFTER_GENERATION, *AFTER_TRAINING)


@dataclass(frozen=True)
class Phase:
    """One phase of a step [n]. exposed_s : what of it makes the step longer."""

    name: str
    start_s: Floats
    end_s: Floats
    devices: Devices
    exposed_s: Floats


@dataclass(frozen=True)
class Step:
    """A step of training by reinforcement [n].

    phases : in order of their beginning. samples_in_flight : responses begun and not yet trained on, at most
        [responses].
    blocked_s : that everything waits for the longest response, though slots and trainers are free: where this is not 0
    the staleness bound sets the pace.
    """

    phases: tuple[Phase, ...]
    step_s: Floats
    samples_in_flight: Floats
    blocked_s: Floats


def _in_turn(named: list[tuple[str, Floats, Devices]]) -> tuple[tuple[Phase, ...], Floats]:
    """Phases one after the other, and their end."""
    phases, now = [], np.asarray(0.0)
    for name, seconds, devices in named:
        phases.append(Phase(name, now, now + seconds, devices, seconds))
        now = np.asarray(now + seconds)
    return tuple(phases), now


def colocated(
    generation_s: Number,
    hand_over_s: Number,
    training: Mapping[str, Number],
    samples: Number,
    *,
    moves: Mapping[str, Number] | None = None,
    kept_samples: Number = 0.0,
) -> Step:
    """Training and generation on the same devices, in turn.

    Parameters
    ----------
    training : seconds of what trains, by name and in its order: log probabilities, reference, critic, update [s].
    samples : responses of a step [responses]. moves : seconds of MOVES over the host link; what is absent takes none
        [s].
    kept_samples : unfinished responses of earlier steps that a partial rollout goes on with [responses].

    Notes
    -----
    step = hand-over + onload + generation + offload + onload + training + offload.

    References
    ----------
    MindSpeed-RL, docs/zh/features/log_metrics.md @05a90d77: the identity of timing/all.
    """
    moves = moves or {}
    unknown = sorted(set(moves) - set(MOVES))
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no move; known: {', '.join(MOVES)}")

    def moving(names: tuple[str, ...]) -> list[tuple[str, Floats, Devices]]:
        return [(name, np.asarray(moves[name], dtype=np.float64), "all") for name in names if name in moves]

    phases, end = _in_turn(
        [
            ("hand_over", np.asarray(hand_over_s, dtype=np.float64), "all"),
            *moving(BEFORE_GENERATION),
            ("generation", np.asarray(generation_s, dtype=np.float64), "all"),
            *moving(AFTER_GENERATION),
            *((name, np.asarray(seconds, dtype=np.float64), "all") for name, seconds in training.items()),
            *moving(AFTER_TRAINING),
        ]
    )
    return Step(phases, end, np.asarray(samples + np.asarray(kept_samples, dtype=np.float64)), np.zeros_like(end))


def separate(generation_s: Number, hand_over_s: Number, training: Mapping[str, Number], samples: Number) -> Step:
    """Generation on devices of its own, in turn with training: each set waits while the other works."""
    phases, end = _in_turn(
        [
            ("generation", np.asarray(generation_s, dtype=np.float64), "generation"),
            *((name, np.asarray(seconds, dtype=np.float64), "training") for name, seconds in training.items()),
            ("hand_over", np.asarray(hand_over_s, dtype=np.float64), "all"),
        ]
    )
    return Step(phases, end, np.asarray(samples, dtype=np.float64), np.zeros_like(end))


def asynchronous(
    generation_s: Number,
    hand_over_s: Number,
    training: Mapping[str, Number],
    samples: Number,
    staleness: int,
    *,
    ahead_s: Number | None = None,
    steady_s: Number = 0.0,
) -> Step:
    """Generation on devices of its own beside training, at most `staleness` updates ahead of it.

    Parameters
    ----------
    generation_s : of one step's responses where those of `staleness` steps run at the same time (`rollout` with so many
        parts; at staleness 0 and 1, one).
    ahead_s : where those of one step more do, which the bound allows while training is shorter than the step; None: a
        step's responses never start before all those of an earlier one have ended (one step off policy).
    steady_s : of the same tokens in full batches that never drain.

    Notes
    -----
    Responses of step i may start when i - staleness updates are done. With training t and o steps' responses at the
    same time, each taking o g(o): (staleness + 1) step = o g(o) + t, so that o = staleness + 1 - t / g(o), between
    staleness and one more, where g is taken as linear: a quadratic equation. The step is the longer of g(o) and t, and
    the hand-over. At staleness 0 nothing starts before the update, and it is `separate`. Training is exposed in full;
    of generation, what training waits for.

    References
    ----------
    AReaL, arXiv:2505.24298, section 5: samples in flight are at most (staleness + 1) steps'. verl, one step off
    policy: step = max(generation, training) + exposed synchronisation.
    """
    if staleness <= 0:
        return separate(generation_s, hand_over_s, training, samples)
    trained, end = _in_turn([(name, np.asarray(s, dtype=np.float64), "training") for name, s in training.items()])
    strict = np.asarray(generation_s, dtype=np.float64)
    generation = strict if ahead_s is None else _ahead_s(strict, np.asarray(ahead_s, dtype=np.float64), end)
    period = np.asarray(np.maximum(generation, end))
    handing = np.asarray(hand_over_s, dtype=np.float64)
    phases = (
        Phase("generation", np.zeros_like(period), generation, "generation", np.asarray(period - end)),
        *trained,
        Phase("hand_over", period, np.asarray(period + handing), "all", handing),
    )
    blocked = np.asarray(np.maximum(0.0, generation - np.maximum(steady_s, end)))
    in_flight = np.asarray((1.0 + staleness) * np.asarray(samples, dtype=np.float64))
    return Step(phases, np.asarray(period + handing), in_flight, blocked)


def _ahead_s(strict: Floats, ahead: Floats, training: Floats) -> Floats:
    """Seconds of generation between both, with as many steps' responses at once as the bound allows."""
    gain = np.maximum(0.0, strict - ahead)
    beyond = np.maximum(0.0, strict - training)
    root = np.sqrt(np.maximum(0.0, (strict + gain) ** 2 - 4.0 * gain * beyond))
    share = 2.0 * beyond / np.maximum(strict + gain + root, 1e-300)
    return np.asarray(strict - np.minimum(share, 1.0) * gain)


def tokens_per_s(
    samples: Number,
    step_s: Number,
    *,
    prompt_mean: Number,
    prompt_max: Number,
    response_mean: Number,
    response_max: Number,
) -> dict[str, Floats]:
    """Tokens a second by the three rules in use, of all devices together.

    mean : prompts and responses at their mean length (NeMo RL, verl). max : at their greatest (MindSpeed-RL unless
    log_max_throughput says otherwise). response : responses at their mean length alone (serving).
    """
    rate = np.asarray(samples, dtype=np.float64) / step_s
    return {
        "mean": np.asarray(rate * (np.asarray(prompt_mean) + response_mean)),
        "max": np.asarray(rate * (np.asarray(prompt_max) + response_max)),
        "response": np.asarray(rate * response_mean),
    }
