"""Expected cost of a plan: its step time, the launches that fail before one starts, and the restarts of the run.

Whether a plan starts is ignorance that one trial resolves: where it fails the next plan is launched, and as errors of
memory are shared, a failure says something of it too. What runs out of memory once it has started does so by chance, as
memory fragments and routing varies, and is restarted. Costs are those of a step, so that they compare with step times.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Final

import numpy as np

from autodeploy.costs.prediction_spread import SHARED_VARIANCE
from autodeploy.costs.training_run.run_estimate import phases_of

if TYPE_CHECKING:
    from autodeploy.specs.spec import Spec
    from cost_models.arrays import Floats, Ints

HOUR_S: Final = 3600.0
DAY_S: Final = 24.0 * HOUR_S
RUN_DAYS: Final = 30.0
"""Length of a run whose tokens are not given, and the one that P(fits) is of."""
FLOOR: Final = 0.75
"""P(fits) below which no plan is recommended while another one is above."""
FAILED_LAUNCH_HOURS: Final = 1.0
RESTART_HOURS: Final = 1.0
_LEVELS: Final = 32
_NORMAL: Final = NormalDist()
_SHARED: Final = np.array([_NORMAL.inv_cdf((place + 0.5) / _LEVELS) for place in range(_LEVELS)])


@dataclass(frozen=True, slots=True)
class RiskPrice:
    """Prices of risks.

    floor : P(fits) below which no plan is recommended while another one is above. failed_launch_s : of the whole
        cluster, until the next plan is launched. restart_s : of an out-of-memory later, with the work that is lost.
    run_s : length of the run over which a failed launch is spread, and in which restarts are met.
    """

    floor: float = FLOOR
    failed_launch_s: float = FAILED_LAUNCH_HOURS * HOUR_S
    restart_s: float = RESTART_HOURS * HOUR_S
    run_s: float = RUN_DAYS * DAY_S


@dataclass(frozen=True, eq=False)
class ExpectedCosts:
    """costs : of a step [plans]. fallbacks : row of the plan that is launched where one does not start [plans]."""

    costs: Floats
    fallbacks: Ints


def expected_costs(
    worth: Floats, starts: Floats, fits: Floats, outer: Ints, ready: Ints, price: RiskPrice
) -> ExpectedCosts:
    """Costs of plans with their best fallbacks.

    worth : what a step is expected to take, in units of the objective [plans]. starts, fits : P(starts) and P(fits)
        [plans]. outer : plans with the same number share all of their error, others `SHARED_VARIANCE` of it [plans].
    ready : rows of the plans that may stand in for others.

    Notes
    -----
    With z the shared part of the error of memory, plan i starts with Phi((x_i - sqrt(r) z) / sqrt(1 - r)), where
    Phi(x_i) is P(starts): the mean over z has 32 equally probable terms. A plan of the same outer strategy starts where
    i does not with the difference of both. A fallback fits no less surely than what it stands in for, where there is
    such a plan. Where it fails too, the surest plan is launched.
    """
    unit = float(worth.min())
    launch = unit * price.failed_launch_s / price.run_s
    months = price.run_s / (RUN_DAYS * DAY_S)
    restarts = -np.log(np.clip(fits / np.maximum(starts, 1e-12), 1e-6, 1.0)) * months
    running = worth + restarts * unit * price.restart_s / price.run_s
    level = np.array([_NORMAL.inv_cdf(p) for p in np.clip(starts, 1e-9, 1.0 - 1e-9).tolist()])
    started = _phi((level[:, None] - np.sqrt(SHARED_VARIANCE) * _SHARED) / np.sqrt(1.0 - SHARED_VARIANCE))
    surest = int(ready[np.lexsort((running[ready], -starts[ready]))[0]])
    instead = started[None, ready, :] * (1.0 - started[:, None, :])
    alike = outer[:, None] == outer[None, ready]
    instead[alike] = np.maximum(0.0, started[None, ready, :] - started[:, None, :])[alike]
    first, second = started.mean(axis=1)[:, None], instead.mean(axis=2)
    neither = np.maximum(0.0, 1.0 - first - second)
    costs = (
        first * running[:, None] + second * (launch + running[None, ready]) + neither * (2.0 * launch + running[surest])
    )
    surer = (fits[None, ready] >= fits[:, None]) & (ready[None, :] != np.arange(len(worth))[:, None])
    place = np.where(surer | ~surer.any(axis=1, keepdims=True), costs, np.inf).argmin(axis=1)
    return ExpectedCosts(costs[np.arange(len(worth)), place], ready[place])


def _phi(x: Floats) -> Floats:
    """The normal distribution's cumulative probability."""
    flat = [_NORMAL.cdf(value) for value in x.ravel().tolist()]
    return np.array(flat).reshape(x.shape)


def price_of(spec: Spec, step_s: float) -> RiskPrice:
    """The price of risks in a run of steps that take about `step_s`; without tokens as long as the spec's terms say."""
    terms = spec.search.risk_terms
    tokens = sum(phase.tokens for phase in phases_of(spec))
    run_s = terms.run_days * DAY_S
    if tokens:
        training = spec.training
        run_s = max(step_s, step_s * tokens / (training.global_batch_size.value * training.sample_tokens))
    return RiskPrice(
        floor=terms.floor,
        failed_launch_s=terms.failed_launch_hours * HOUR_S,
        restart_s=terms.restart_hours * HOUR_S,
        run_s=run_s,
    )
