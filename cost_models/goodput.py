"""Goodput: what checkpoints, failures and restarts cost a run of weeks.

Parameters
----------
parameters : of the model [parameters].
devices : of the job [devices].
device_failure_interval_s : mean time between interruptions by one device.
lost_work_s : work done twice.
failures : interruptions of the run [count].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.hbm import FULL, OptimizerFormat

if TYPE_CHECKING:
    from cost_models.arrays import Floats, Number

WEIGHT_BYTES = 2.0
MOST_EXPONENT = 200.0


def checkpoint_bytes(parameters: Number, *, optimizer: OptimizerFormat = FULL) -> Floats:
    """Bytes of one checkpoint of the whole model: 16-bit weights, master copy and both moments of Adam, each once.

    Notes
    -----
    2 + 4 + 8 = 14 B a parameter; less under lossy optimizer formats. Gradients, and copies that data-parallel ranks
    hold, are not saved.

    References
    ----------
    Megatron-LM dist_checkpointing of a distributed optimizer: param, exp_avg, exp_avg_sq beside the model's weights.
    """
    a_parameter = WEIGHT_BYTES + optimizer.master + optimizer.moments
    return np.asarray(np.asarray(parameters, dtype=np.float64) * a_parameter)


def checkpoint_read_bytes(saved_bytes: Number, weight_bytes: Number, held_weight_bytes: Number) -> Floats:
    """Bytes read where every rank loads a checkpoint: its own weights each, copies included, and all else once.

    Parameters
    ----------
    saved_bytes : of the checkpoint. weight_bytes : of its weights, each once. held_weight_bytes : of the weights that
        all ranks hold together; fewer than `weight_bytes` count as these.

    References
    ----------
    Megatron-LM core_v0.12.1 training/checkpointing.py, load_checkpoint: each rank reads the model file of its tensors,
    pipeline and experts, or its tensors of a distributed checkpoint, unless --ckpt-fully-parallel-load shares them out;
    the states of a distributed optimizer are read by one replica and scattered, or each shard by its rank.
    """
    weights = np.asarray(weight_bytes, dtype=np.float64)
    return np.asarray(np.asarray(saved_bytes) - weights + np.maximum(weights, held_weight_bytes))


def job_failure_interval_s(device_failure_interval_s: Number, devices: Number) -> Floats:
    """MTBF of a job: mean seconds between interruptions, where any one of its devices interrupts it [s].

    Failures of devices are independent and exponential, so their rates add up: the interval of one over their number.
    """
    return np.asarray(np.asarray(device_failure_interval_s, dtype=np.float64) / devices)


def optimum_checkpoint_interval_s(checkpoint_s: Number, failure_interval_s: Number) -> Floats:
    """Optimum checkpoint interval: seconds of work between two checkpoints that make a run shortest.

    Parameters
    ----------
    checkpoint_s : seconds that training stands still for one checkpoint, delta [s].
    failure_interval_s : mean time between interruptions of the job, M [s].

    Notes
    -----
    sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + (delta / 2M) / 9) - delta where delta < 2M, else M. The first factor is
    Young's first order.

    References
    ----------
    J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9), 1974.
    J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006: its
    perturbation solution.
    """
    delta = np.asarray(checkpoint_s, dtype=np.float64)
    mean = np.asarray(failure_interval_s, dtype=np.float64)
    ratio = delta / (2.0 * mean)
    higher = np.sqrt(2.0 * delta * mean) * (1.0 + np.sqrt(ratio) / 3.0 + ratio / 9.0) - delta
    return np.asarray(np.where(delta < 2.0 * mean, higher, mean))


@dataclass(frozen=True, slots=True)
class RunTime:
    """Expected seconds of a run by what they are spent on, all >= 0; their sum is the run's wall time."""

    training_s: Floats
    checkpoint_s: Floats
    lost_work_s: Floats
    restart_s: Floats
    failures: Floats
    """Expected interruptions, those that hit a restart included."""

    @property
    def total_s(self) -> Floats:
        return np.asarray(self.training_s + self.checkpoint_s + self.lost_work_s + self.restart_s)

    @property
    def goodput(self) -> Floats:
        """Share of the wall time that becomes progress of the training."""
        return np.asarray(self.training_s / self.total_s)


def _expm1(exponent: Number) -> Floats:
    """exp(x) - 1, held where a float still has room for its products: such a run never ends."""
    return np.asarray(np.expm1(np.minimum(exponent, MOST_EXPONENT)))


def run_time(
    training_s: Number,
    checkpoint_s: Number,
    interval_s: Number,
    failure_interval_s: Number,
    restart_s: Number,
    *,
    write_s: Number = 0.0,
) -> RunTime:
    """Wall time and goodput of a run that checkpoints every `interval_s` seconds and restarts from the last one.

    Parameters
    ----------
    training_s : seconds of steps alone.
    checkpoint_s, interval_s, failure_interval_s : delta, tau and M as in `optimum_checkpoint_interval_s`.
    restart_s : from a failure to the first step after it, R.
    write_s : seconds after a checkpoint's pause until it can be restarted from, beside training (an asynchronous
        write); a failure loses that much more.

    Notes
    -----
    Failures are exponential and may hit checkpoints and restarts too. A segment of tau + delta is repeated until it
    passes: n = exp((tau + delta) / M) - 1 failed attempts are expected, which lose n M - (tau + delta) of work, and
    restarts, themselves interrupted, take M (exp(R / M) - 1) each. The sum is Daly's complete
    M exp(R / M) (exp((tau + delta) / M) - 1) a segment. Each failed attempt loses write_s more.

    References
    ----------
    J. T. Daly, FGCS 22(3), 2006: the complete cost function, here by its terms.
    """
    mean = np.asarray(failure_interval_s, dtype=np.float64)
    segment = np.asarray(interval_s, dtype=np.float64) + checkpoint_s
    segments = np.asarray(training_s, dtype=np.float64) / interval_s
    failed = _expm1(segment / mean)
    restarts = mean * _expm1(np.asarray(restart_s, dtype=np.float64) / mean)
    # expm1(x) - x, without loss of digits where failures are rare: below 1e-4 two terms of its series are exact to
    # x^2 / 12 < 1e-9 of it, while the difference has lost four of sixteen digits there and loses more below.
    ratio = segment / mean
    small = np.minimum(ratio, 1e-4)
    beyond = np.where(ratio < 1e-4, small**2 / 2.0 + small**3 / 6.0, np.maximum(failed - ratio, 0.0))
    return RunTime(
        training_s=np.asarray(training_s, dtype=np.float64),
        checkpoint_s=np.asarray(segments * checkpoint_s),
        lost_work_s=np.asarray(segments * (mean * beyond + failed * write_s)),
        restart_s=np.asarray(segments * failed * restarts),
        failures=np.asarray(segments * failed * (1.0 + _expm1(np.asarray(restart_s) / mean))),
    )


def recovered_run_time(
    training_s: Number,
    checkpoint_s: Number,
    interval_s: Number,
    failure_interval_s: Number,
    restart_s: Number,
    *,
    recovered_share: Number,
    recovery_s: Number,
    recovery_loss_s: Number,
    write_s: Number = 0.0,
) -> RunTime:
    """Time of a run where a share of the failures is recovered from without going back to a checkpoint.

    Parameters
    ----------
    recovered_share : of the failures, p, from 0 to below 1 [ratio].
    recovery_s : from such a failure to the first step after it, r. recovery_loss_s : work that it repeats.
    others : as `run_time`, whose result this is with a share of 0.

    Notes
    -----
    The two kinds of failures are independent, at rates p / M and (1 - p) / M. The others make Daly's run of
    M / (1 - p); recovered failures hit every second of it at p / M, recoveries themselves included, each of which takes
    (M / p) (exp(p r / M) - 1) and repeats what its step had done.
    """
    mean = np.asarray(failure_interval_s, dtype=np.float64)
    share = np.asarray(recovered_share, dtype=np.float64)
    rest = run_time(training_s, checkpoint_s, interval_s, mean / (1.0 - share), restart_s, write_s=write_s)
    rate = share / mean
    spent = np.asarray(recovery_s, dtype=np.float64) * rate
    # (exp(x) - 1) / x is 1 where nothing is recovered.
    longer = np.where(spent > 0.0, _expm1(spent) / np.where(spent > 0.0, spent, 1.0), 1.0)
    met = rest.total_s * rate
    return RunTime(
        training_s=rest.training_s,
        checkpoint_s=rest.checkpoint_s,
        lost_work_s=np.asarray(rest.lost_work_s + met * recovery_loss_s),
        restart_s=np.asarray(rest.restart_s + met * recovery_s * longer),
        failures=np.asarray(rest.failures + met * (1.0 + _expm1(spent))),
    )
