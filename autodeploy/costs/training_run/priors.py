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
    assumed, reboots = priors(), "worker_reboot" in features
    share = run.recovered_share if run.recovered_share is not None else assumed["recovered_share"].value
    used = [] if run.recovered_share is not None else [assumed["recovered_share"]]
    if not reboots:
        return Recovery("ttp", share, dump_s + restart_s, tuple(used))
    used += [] if run.reboot_s is not None else [assumed["reboot_s"]]
    reboot_s = run.reboot_s if run.reboot_s is not None else assumed["reboot_s"].value
    return Recovery("ttp+reboot", share, reboot_s, tuple(used))


def conditions(run: RunSpec, num_npus: int) -> Conditions:
    """Conditions of a run on `num_npus` cards."""
    assumed = priors()
    used: list[Prior] = []

    def taken(name: str, given: float | None) -> float:
        if given is not None:
            return given
        used.append(assumed[name])
        return assumed[name].value

    if run.failure_interval_h is not None:
        interval_s = HOUR_S * run.failure_interval_h
    else:
        of_a_card_s = HOUR_S * taken("npu_failure_interval_h", run.npu_failure_interval_h)
        interval_s = float(job_failure_interval_s(of_a_card_s, num_npus))
    each = None if run.storage_gb_per_s is None else run.storage_gb_per_s / num_npus
    storage = 1e9 * num_npus * taken("storage_gb_per_s_per_npu", each)
    return Conditions(interval_s, storage, taken("restart_s", run.restart_s), tuple(used))
