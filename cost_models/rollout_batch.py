"""The batch of a rank over the steps of generation: by stretches, of one unit and of the slowest.

Parameters
----------
tpot_s : of one step, by batch and context.
engines : the `Engines` that generate.
likeness : `Likeness` of the responses of a prompt.
group_size : responses of a prompt on one rank [responses].
prompt_tokens : mean length of a prompt [tokens].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Floats, Number, product
from cost_models.response_lengths import largest_normal
from cost_models.rollout_slots import drained, mean_start

if TYPE_CHECKING:
    from cost_models.response_lengths import Lengths, Likeness

# Seconds of a step by a rank's batch, the mean context and, where asked for, the batch of all ranks of a unit [n, any].
TokenTime = Callable[..., Floats]

LEAST = 1e-300


@dataclass(frozen=True)
class Engines:
    """Engines of generation, by layout [n].

    responses : of one rank in a step, the fullest one's where they do not divide [responses]. slots : that a rank runs
        at once [responses].
    ranks : that step together: the data-parallel ranks of an expert group; 1 for dense models. units : of such groups,
        or of replicas of a dense model.
    """

    responses: Floats
    slots: Floats
    ranks: Floats
    units: Floats

    @classmethod
    def of(cls, responses: Number, slots: Number, ranks: Number = 1.0, units: Number = 1.0) -> Engines:
        """Of numbers or arrays."""
        given = (np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in (responses, slots, ranks, units))
        return cls(*np.broadcast_arrays(*given))

    @property
    def running(self) -> Floats:
        """Responses that a rank runs when all of a step's have come [n]."""
        return np.minimum(self.slots, self.responses)


@dataclass(frozen=True)
class Stretches:
    """The batch of a unit by stretches of its steps, in order of time [n, S].

    steps : of each stretch; the first lasts while responses wait for a slot [steps]. batch : of the unit's fullest
        rank, at least 1 [responses]. mean_batch : of its ranks [responses]. context : mean tokens of its responses,
        prompts included [tokens]. longest_tokens : expected longest response of all units [n].
    """

    steps: Floats
    batch: Floats
    mean_batch: Floats
    context: Floats
    longest_tokens: Floats

    def seconds(self, tpot_s: TokenTime, ranks: Floats | None = None) -> Floats:
        """Seconds of each stretch [n, S]. ranks : of a unit [n], where `tpot_s` takes the batch of all of them too."""
        fullest = () if ranks is None else (np.maximum(1.0, self.mean_batch * ranks[:, None]),)
        return np.asarray(self.steps * tpot_s(self.batch, self.context, *fullest))

    def within(self, slots: Floats) -> Stretches:
        """With at most so many at once [n]: where more would run all take as much longer."""
        limit = slots[:, None]
        longer = np.maximum(1.0, self.mean_batch / limit)
        return Stretches(
            steps=self.steps * longer,
            batch=np.minimum(self.batch, limit),
            mean_batch=np.minimum(self.mean_batch, limit),
            context=self.context,
            longest_tokens=self.longest_tokens,
        )


def stretches(
    engines: Engines,
    lengths: Lengths,
    likeness: Likeness,
    group_size: int,
    prompt_tokens: Number,
    *,
    n_units: Number = 1.0,
    token_excess: Number = 0.0,
) -> Stretches:
    """The batch of one unit.

    Parameters
    ----------
    n_units : units of whose responses the unit has the longest: 1, that of a unit at random [units]. token_excess : by
        how many standard deviations the unit has more tokens than the mean unit.

    Notes
    -----
    D(x): share of a rank's B slots that runs x steps after its last response started. Of n slots in the unit one at
    least runs with 1 - (1 - D)^n: over so many steps in the mean a stretch lasts, at the batch B D / (1 - (1 - D)^n),
    exact where the time of a step is linear in the batch. Steps while responses wait: what is left of the rank's
    tokens, over B. The fullest of d ranks has B sin^2(asin sqrt(D) + z_d / (2 sqrt B)) in a stretch (the transformation
    that makes a binomial variable's deviation even), z_d the expected largest of d normal variables.

    References
    ----------
    Anscombe, "The transformation of Poisson, binomial and negative-binomial data", Biometrika 35 (1948).
    """
    slots, responses = engines.running[:, None], engines.responses[:, None]
    ranks = engines.ranks[:, None]
    runs, written = drained(lengths, engines.responses / engines.running)
    drain_tokens = slots * product(runs, lengths.stretch)[:, None]
    waiting = np.maximum(0.0, 1.0 - drain_tokens / (responses * lengths.mean))  # share of tokens
    deviation = likeness.deviation_of_sum(responses, group_size)
    n_units = np.asarray(n_units, dtype=np.float64).reshape(-1, 1)
    units = engines.units[:, None]
    more = np.asarray(token_excess, dtype=np.float64).reshape(-1, 1) * deviation / np.sqrt(ranks)
    more = np.minimum(more, responses * _beyond_mean(lengths, units))
    fullest = largest_normal(ranks)
    # A slot runs no less often than it runs: at least one counts, however alike responses are.
    counted = np.maximum(slots * likeness.independent, 1.0)
    # With a queue and few slots a unit is late by its tokens, of which the drain's spread is then a part.
    drains = n_units ** (1.0 - waiting / np.maximum(slots, 1.0))
    idle = counted * drains * np.log1p(-np.minimum(runs, 1.0 - 1e-12))
    alive = np.maximum(-np.expm1(ranks * idle), LEAST)
    of_a_rank = -np.expm1(idle)
    later = product(alive - of_a_rank, lengths.stretch)[:, None]
    most = (
        np.minimum(np.sqrt(waiting) * fullest * deviation, waiting * responses * _beyond_mean(lengths, ranks)) / slots
    )
    # Fullest queue and latest drain of a group are seldom the same rank's: their delays add as deviations do.
    queue = waiting * (responses * lengths.mean + more) / slots + np.hypot(later, most) - later
    # List scheduling never ends later than waves of as many responses as slots, each with its longest of all units
    # (Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969).
    independent = np.where(slots >= group_size, likeness.independent, 1.0)
    ended = np.log1p(-np.minimum(lengths.survival, 1.0 - 1e-12)) * independent
    wave = product(-np.expm1(slots * ranks * units * ended), lengths.stretch)[:, None]
    at_most = np.ceil(responses / slots - 1e-9) * wave
    least, drain = waiting * responses * lengths.mean / slots, product(alive, lengths.stretch)[:, None]
    queue = np.minimum(queue, np.maximum(at_most - drain, least))
    # Beyond that the drain gives way, down to its tokens in full batches.
    spare = product(np.maximum(alive - runs, 0.0), lengths.stretch)[:, None]
    given = np.clip((queue + drain - at_most) / np.maximum(spare, LEAST), 0.0, 1.0)
    alive = np.maximum(alive - given * np.maximum(alive - runs, 0.0), LEAST)
    mean = slots * runs + (1.0 - waiting) * more * likeness.follows
    angle = np.arcsin(np.sqrt(np.clip(mean / slots, 0.0, 1.0)))
    angle = angle + fullest * np.sqrt(likeness.clustered / slots) / 2.0
    alone = np.maximum(1.0, mean / alive)
    batch = np.clip(slots * np.sin(np.minimum(angle, np.pi / 2.0)) ** 2, alone, np.maximum(alone, ranks * mean / alive))
    batch = np.minimum(batch, np.maximum(slots, 1.0))
    steps = lengths.stretch * alive
    longest, at_least = _of_longest(lengths, likeness, slots, responses, responses * ranks * n_units)
    extra = np.maximum(0.0, at_least - queue - steps.sum(axis=1, keepdims=True))
    # Of all tokens' contexts the drain has its own; the rest falls to the steps before.
    contexts = responses * lengths.mean_square / 2.0 - slots * product(runs * written, lengths.stretch)[:, None]
    before = np.clip(contexts / np.maximum(waiting * responses * lengths.mean, 1.0), 0.0, lengths.longest)
    return Stretches(
        steps=np.concatenate([queue, steps, extra], axis=1),
        batch=np.concatenate([np.maximum(slots, 1.0), batch, np.ones_like(extra)], axis=1),
        mean_batch=np.concatenate([slots, np.minimum(mean / alive, batch), 1.0 / ranks], axis=1),
        context=prompt_tokens + np.concatenate([before, written, np.full_like(extra, lengths.longest)], axis=1),
        longest_tokens=longest,
    )


def _of_longest(
    lengths: Lengths, likeness: Likeness, slots: Floats, responses: Floats, count: Floats
) -> tuple[Floats, Floats]:
    """Expected longest of so many responses [n], and steps that a unit with it takes at least [n, 1].

    It is met at any place of the queue; and its rank has the work of all its responses, on all its slots.
    """
    ended = np.log1p(-np.minimum(lengths.survival, 1.0 - 1e-12)) * likeness.independent
    longest = product(-np.expm1(count * ended), lengths.stretch)
    others = np.maximum(0.0, count * lengths.mean - longest[:, None]) / np.maximum(count - 1.0, 1.0)
    work = (longest[:, None] + (responses - 1.0) * others) / np.maximum(slots, 1.0)
    return longest, np.maximum(longest[:, None] + mean_start(lengths, responses / slots), work)


def _beyond_mean(lengths: Lengths, count: Floats) -> Floats:
    """Expected longest of so many responses [n, 1], less the mean [n, 1, tokens]."""
    running = -np.expm1(count * np.log1p(-np.minimum(lengths.survival, 1.0 - 1e-12)))
    return np.asarray(product(running, lengths.stretch)[:, None] - lengths.mean)


def slowest(
    engines: Engines,
    lengths: Lengths,
    likeness: Likeness,
    group_size: int,
    prompt_tokens: Number,
    tpot_s: TokenTime,
    parts: int = 1,
    by_group: bool = False,
) -> Stretches:
    """The batch of the unit that ends last, of all `units`.

    by_group : `tpot_s` takes the batch of all ranks of a unit as well.

    parts : consecutive steps whose responses run at the same time. Their tokens average in the unit. Steps are trained
        on in their order: a late one holds up those after it, but these are in time for it to be made good. Between a
        wait for the longest of each step and one for the longest of all stands that of sqrt(parts) steps: within 6 % of
        simulated steps at a cv of 0.8 (tests/unit/test_cost_rollout.py), 13 % at 1.5 with few responses [steps].

    Notes
    -----
    A unit is late because it has the longest response, or more tokens than the others. T0, T0 + u, T0 + v are the times
    of a unit at random, of the one with the longest response of all, of the one with most tokens. With the correlation
    r of both the latest is at T0 + sqrt(u^2 + v^2 + 2 r u v), the deviation of a sum: the point of the joint
    distribution where it is densest so far out. The unit there has the longest response, and a part of the surplus.

    References
    ----------
    Hasofer and Lind, "Exact and invariant second-moment code format", J. Eng. Mech. 100 (1974): the design point.
    """
    n_units = engines.units * np.sqrt(parts)
    if np.all(n_units <= 1.0):
        return stretches(engines, lengths, likeness, group_size, prompt_tokens)

    def made(n_units: Number, token_excess: Number) -> Stretches:
        return stretches(
            engines, lengths, likeness, group_size, prompt_tokens, n_units=n_units, token_excess=token_excess
        )

    ranks = engines.ranks if by_group else None

    most = largest_normal(engines.units)
    tried = (made(1.0, 0.0), made(n_units, 0.0), made(1.0, most))
    # One call for all three: a step's time is the dearest part.
    joined = Stretches(
        steps=np.concatenate([each.steps for each in tried], axis=1),
        batch=np.concatenate([each.batch for each in tried], axis=1),
        mean_batch=np.concatenate([each.mean_batch for each in tried], axis=1),
        context=np.concatenate([each.context for each in tried], axis=1),
        longest_tokens=tried[0].longest_tokens,
    )
    usual, longest, largest = np.moveaxis(joined.seconds(tpot_s, ranks).reshape(len(most), 3, -1).sum(axis=2), 1, 0)
    by_longest, by_tokens = longest - usual, largest - usual
    both = 2.0 * _correlation(engines, lengths, likeness, group_size) * by_longest * by_tokens
    needed = np.sqrt(np.maximum(0.0, by_longest**2 + by_tokens**2 + both)) - by_longest
    share = np.clip(needed / np.maximum(by_tokens, LEAST), 0.0, 1.0)
    return made(n_units, most * share / np.sqrt(parts))


def _correlation(engines: Engines, lengths: Lengths, likeness: Likeness, group_size: int) -> Floats:
    """Of a unit's longest response and its tokens [n].

    Cov(longest, tokens) = integral over l of P(longest <= l) (E tokens - E[tokens, given longest <= l]).
    """
    count = (engines.responses * engines.ranks)[:, None]
    ended = np.exp(count * np.log1p(-np.minimum(lengths.survival, 1.0 - 1e-12)) * likeness.independent)
    together_vary = count[:, 0] * product(ended * likeness.missing, lengths.stretch)
    # Of what the longest lacks of the limit: of many responses it is next to nothing, and so is its variance.
    squares = 2.0 * lengths.tokens[-1] * lengths.stretch - np.diff(lengths.tokens**2, prepend=0.0)
    variance = product(ended, squares) - product(ended, lengths.stretch) ** 2
    deviations = np.sqrt(np.maximum(variance, 0.0)) * likeness.deviation_of_sum(count[:, 0], group_size)
    return np.asarray(np.clip(together_vary / np.maximum(deviations, LEAST), 0.0, 1.0))
