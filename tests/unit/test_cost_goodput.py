"""Checkpoints and failures: Daly's published optima, his sum, and a simulation of the same run."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from cost_models.goodput import (
    checkpoint_bytes,
    checkpoint_read_bytes,
    job_failure_interval_s,
    optimum_checkpoint_interval_s,
    recovered_run_time,
    run_time,
)
from cost_models.hbm import OptimizerFormat

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(
    ("failure_interval_s", "optimum_min"),
    [(24 * HOUR, 117.0), (6 * HOUR, 57.0), (15 * MINUTE, 9.1)],
    ids=["figure 3", "figure 4", "figure 5"],
)
def test_the_optimum_is_dalys(failure_interval_s: float, optimum_min: float) -> None:
    """Daly, FGCS 22(3), figures 3 to 5: a dump of 5 minutes, a restart of 10."""
    found = float(optimum_checkpoint_interval_s(5 * MINUTE, failure_interval_s))
    assert found / MINUTE == pytest.approx(optimum_min, rel=0.006)


def test_the_optimum_is_the_least_run_time() -> None:
    best = float(optimum_checkpoint_interval_s(200.0, 50_000.0))
    around = best * np.linspace(0.5, 2.0, 301)
    totals = run_time(1e6, 200.0, around, 50_000.0, 600.0).total_s
    assert float(run_time(1e6, 200.0, best, 50_000.0, 600.0).total_s) == pytest.approx(float(totals.min()), rel=1e-6)


def test_where_failures_are_faster_than_checkpoints_the_interval_is_theirs() -> None:
    assert float(optimum_checkpoint_interval_s(1000.0, 400.0)) == 400.0


def test_the_parts_are_dalys_complete_sum() -> None:
    delta, tau, mean, restart = 300.0, 7000.0, 20_000.0, 600.0
    spent = run_time(1e6, delta, tau, mean, restart)
    daly = mean * math.exp(restart / mean) * (math.exp((tau + delta) / mean) - 1.0) * 1e6 / tau
    assert float(spent.total_s) == pytest.approx(daly, rel=1e-12)
    assert all(float(part) >= 0.0 for part in (spent.checkpoint_s, spent.lost_work_s, spent.restart_s))


def test_a_run_without_failures_pays_its_checkpoints_only() -> None:
    spent = run_time(1e6, 100.0, 5000.0, 1e15, 600.0)
    assert float(spent.total_s) == pytest.approx(1e6 * 5100 / 5000, rel=1e-9)
    assert float(spent.goodput) == pytest.approx(5000 / 5100, rel=1e-9)


def test_a_simulated_run_agrees() -> None:
    """Segments that exponential failures interrupt, one by one."""
    delta, tau, mean, restart = 60.0, 900.0, 3000.0, 240.0
    dice = random.Random(7)
    segments, wall, lost, restarting, failures = 40_000, 0.0, 0.0, 0.0, 0
    for _ in range(segments):
        while (life := dice.expovariate(1.0 / mean)) < tau + delta:
            failures += 1
            lost, wall = lost + life, wall + life
            while (life := dice.expovariate(1.0 / mean)) < restart:
                failures += 1
                restarting, wall = restarting + life, wall + life
            restarting, wall = restarting + restart, wall + restart
        wall += tau + delta
    spent = run_time(segments * tau, delta, tau, mean, restart)
    assert float(spent.total_s) == pytest.approx(wall, rel=0.02)
    assert float(spent.lost_work_s) == pytest.approx(lost, rel=0.03)
    assert float(spent.restart_s) == pytest.approx(restarting, rel=0.03)
    assert float(spent.failures) == pytest.approx(failures, rel=0.03)


def test_an_asynchronous_write_is_lost_with_its_failure() -> None:
    plain, written = (run_time(1e6, 10.0, 2000.0, 1e6, 600.0, write_s=w) for w in (0.0, 200.0))
    assert float(written.lost_work_s - plain.lost_work_s) == pytest.approx(200.0 * float(plain.failures), rel=0.01)


def test_bytes_of_a_checkpoint() -> None:
    assert float(checkpoint_bytes(671e9)) == pytest.approx(14 * 671e9)
    assert float(checkpoint_bytes(1e9, optimizer=OptimizerFormat.of(frozenset({"o2_optimizer"})))) == 10e9


def test_the_rates_of_cards_add_up() -> None:
    """Llama 3 405B: 419 unexpected interruptions in 54 days are one in about 3 hours."""
    assert float(job_failure_interval_s(50_700 * HOUR, 16_384)) / HOUR == pytest.approx(54 * 24 / 419, rel=0.01)


def test_every_rank_reads_its_own_weights() -> None:
    """Megatron-LM's load_checkpoint: 2 of 14 bytes a parameter are read by each of eight replicas, the states once."""
    saved = float(checkpoint_bytes(1e9))
    assert float(checkpoint_read_bytes(saved, 2e9, 8 * 2e9)) == pytest.approx(12e9 + 16e9)
    # Parameters that replicas share are read once all the same.
    assert float(checkpoint_read_bytes(saved, 2e9, 0.5e9)) == pytest.approx(saved)


@pytest.mark.parametrize("seed", range(40))
def test_recovery_adds_to_dalys_run_and_pays_at_equal_steps(seed: int) -> None:
    """The time against a sum of its own: at rate p / M a recovery and half a step, at (1 - p) / M Daly's loss."""
    draw = random.Random(seed)
    work, pause, mean = 10 ** draw.uniform(5, 7), 10 ** draw.uniform(0, 2), 10 ** draw.uniform(4, 7)
    restart, share = draw.uniform(300, 900), draw.uniform(0.3, 0.95)
    without = run_time(work, pause, optimum_checkpoint_interval_s(pause, mean), mean, restart)
    rest = mean / (1.0 - share)
    interval = optimum_checkpoint_interval_s(pause, rest)
    recovery = {"recovered_share": share, "recovery_s": 180.0, "recovery_loss_s": 10.0}
    found = recovered_run_time(work, pause, interval, mean, restart, **recovery)
    segment = float(interval) + pause
    daly = work / float(interval) * rest * math.exp(restart / rest) * math.expm1(segment / rest)
    once = mean / share * math.expm1(180.0 * share / mean) + 10.0
    assert float(found.total_s) == pytest.approx(daly * (1.0 + share / mean * once), rel=1e-9)
    assert float(found.total_s) < float(without.total_s)  # it costs nothing but memory and a slower step
    rarer = recovered_run_time(work, pause, interval, 2.0 * mean, restart, **recovery)
    assert float(rarer.total_s) < float(found.total_s)
    # A step that is slower by more than all that failures cost never pays.
    slower = recovered_run_time(1.001 * float(without.total_s), pause, interval, mean, restart, **recovery)
    assert float(slower.total_s) > float(without.total_s)
