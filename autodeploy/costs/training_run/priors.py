"""Numbers of a run that its spec leaves open, from `priors.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from autodeploy.specs.training_run import Prior
from cost_models.goodput import job_failure_interval_s
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Collection

    from autodeploy.specs.training_run import RecoveryName, RunSpec

HOUR_S = 3600.0


@cache
def priors() -> dict[str, Prior]:
    """The shipped priors by name."""
    priors = shipped("autodeploy.costs.training_run", "priors.yaml")
    return {name: Prior(name=name, **fields) for name, fields in priors.items()}


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a run on some cards, from its spec or from priors, and the priors it rests on."""

    failure_interval_s: float
    storage_bytes_per_s: float
    restart_s: float
    priors: tuple[Prior, ...]


@dataclass(frozen=True, slots=True)
class Recovery:
    """Recovery from a run's failures: the share that leaves a copy of the states, seconds until work goes on."""

    name: RecoveryName
    share: float
    recovery_s: float
    priors: tuple[Prior, ...]


NO_RECOVERY = Recovery("none", 0.0, 0.0, ())


def recovery_of(run: RunSpec, features: Collection[str], *, dump_s: float, restart_s: float) -> Recovery:
    """The recovery of a plan's features, from its spec or from priors.

    dump_s : of the checkpoint that is saved at the failure. restart_s : until work goes on after it, reading included.

    Notes
    -----
    A saved state is of the begin of its step (MindCluster, saving at the failure), so less than a step is lost. Elastic
    training is met as its saved state alone: how long a card stays away is not known.
    """
    if "high_availability" not in features:
        return NO_RECOVERY
    used: list[Prior] = []
    share = _taken("recovered_share", run.recovered_share, used)
    if "worker_reboot" not in features:
        return Recovery("ttp", share, dump_s + restart_s, tuple(used))
    return Recovery("ttp+reboot", share, _taken("reboot_s", run.reboot_s, used), tuple(used))


def _taken(name: str, given: float | None, used: list[Prior]) -> float:
    """The given number, else the prior of that name, which is `used`."""
    if given is not None:
        return given
    used.append(priors()[name])
    return used[-1].value


def conditions(run: RunSpec, num_npus: int) -> Conditions:
    """Conditions of a run on `num_npus` cards."""
    used: list[Prior] = []
    if run.failure_interval_h is not None:
        interval_s = HOUR_S * run.failure_interval_h
    else:
        of_a_card_s = HOUR_S * _taken("npu_failure_interval_h", run.npu_failure_interval_h, used)
        interval_s = float(job_failure_interval_s(of_a_card_s, num_npus))
    each = None if run.storage_gb_per_s is None else run.storage_gb_per_s / num_npus
    storage = 1e9 * num_npus * _taken("storage_gb_per_s_per_npu", each, used)
    return Conditions(interval_s, storage, _taken("restart_s", run.restart_s, used), tuple(used))
