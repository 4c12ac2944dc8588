"""An engine under a steady number of requests: what a client measures as time per output token and to the first.

Each request that ends is followed by another, so in one lifetime of a request every other one is prefilled once. Those
passes fall between the tokens of the requests that decode, or in front of their first one.

Parameters
----------
model : the `Generation` that serves.
concurrency : requests in flight [requests].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number
    from cost_models.generation import Generation


@dataclass(frozen=True, slots=True)
class Service:
    """Service as a client measures it, each [n].

    tpot_s : mean time between a request's tokens [s]. ttft_s : to its first, waiting included [s].
    running : requests that decode at once on a data-parallel rank [requests]. tokens_per_s : output of the rank.
    decode_s : a step without prompts [s].
    """

    tpot_s: Floats
    ttft_s: Floats
    running: Floats
    tokens_per_s: Floats
    decode_s: Floats


def interrupted_share(
    running: Number, input_length: Number, prefill_batch_tokens: float | None, together: Number = 0.0
) -> Floats:
    """Share of the prompts' passes that fall between the tokens of requests which already decode [n].

    Parameters
    ----------
    prefill_batch_tokens : absent, prompts are taken up beside decoding, and a request waits for its own and those that
        begin with it: 1 - 1 / B - together. Given, an engine prefills all that wait before it decodes again, in passes
        of so many tokens: requests that begin together end together, and those of the i-th of n passes wait for n - i
        later ones, (n - 1) / 2 n in the mean [tokens].
    together : share of the running requests whose prompts a request waits for with its own [fraction].
    """
    running = np.maximum(np.asarray(running, dtype=np.float64), 1.0)
    if prefill_batch_tokens is None:
        return np.asarray(np.maximum(1.0 - 1.0 / running - np.where(running > 1.0, together, 0.0), 0.0))
    passes = np.ceil(running * np.asarray(input_length) / prefill_batch_tokens)
    return np.asarray((passes - 1.0) / (2.0 * passes))


def served(
    model: Generation,
    concurrency: Number,
    input_length: Number,
    output_length: Number,
    *,
    most_running: Number = np.inf,
    prefill_batch_tokens: float | None = None,
    together: Number = 0.0,
) -> Service:
    """Measurements of clients that keep `concurrency` requests in flight on one data-parallel rank [n].

    Parameters
    ----------
    input_length, output_length : tokens of a prompt and of an answer [tokens]. most_running : limit of the engine
        [requests].
    prefill_batch_tokens, together : as of `interrupted_share`.

    Notes
    -----
    Requests whose keys and values do not fit wait, so the batch is min(concurrency, limit, capacity) at the context of
    a request that is half done. In a step that takes up a prompt, the prompt's work comes on top of decoding, and the
    host issues the step's operators one by one, which bounds it from below. Such steps are a share q of all: prompts
    that begin per step, at most 1.
    """
    concurrency = np.asarray(concurrency, dtype=np.float64)
    inputs, outputs = np.asarray(input_length, dtype=np.float64), np.asarray(output_length, dtype=np.float64)
    context = inputs + outputs / 2.0
    room = np.maximum(model.requests_that_fit(context), 1.0)
    running = np.maximum(np.minimum(np.minimum(concurrency, most_running), room), 1e-9)
    decode = model.tpot_s(running, context)
    prompt = model.prefill_device_s(inputs)
    steps = np.maximum(outputs - 1.0, 1.0)
    begun = interrupted_share(running, inputs, prefill_batch_tokens, together) * running / steps
    mixed = np.minimum(begun, 1.0)
    with_prompt = np.maximum(decode + begun / np.maximum(mixed, 1e-9) * prompt, model.issue_floor_s)
    tpot = (1.0 - mixed) * decode + mixed * with_prompt
    # One lifetime: every running request's prompt once, and all steps; those beyond the room wait for their turn.
    lifetime = running * np.maximum(prompt, model.issue_floor_s / np.maximum(running, 1.0)) + steps * decode
    waiting = np.maximum(concurrency / running - 1.0, 0.0) * lifetime
    # A request that comes waits for the step that runs.
    first = np.maximum(lifetime - steps * tpot, np.maximum(prompt, model.issue_floor_s)) + decode + waiting
    rate = concurrency * outputs / (first + steps * tpot)
    return Service(np.asarray(tpot), np.asarray(first), running, np.asarray(rate), np.asarray(decode))
