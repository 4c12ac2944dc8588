"""Numbers of a run that its spec leaves open, from `priors.yaml`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from autodeploy.specs.training_run import Prior
from cost_models.goodput import job_failure_interval_s
from hardware_profiles.shipped_yaml import load_shipped_yaml

if TYPE_CHECKING:
    from autodeploy.specs.run import RunSpec

HOUR_S = 3600.0


@cache
def priors() -> dict[str, Prior]:
    """The shipped priors by name."""
    text = files("autodeploy.training_run").joinpath("priors.yaml").read_text(encoding="utf-8")
    return {name: Prior(name=name, **fields) for name, fields in load_shipped_yaml(text).items()}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a run on some cards meets, from its spec or from priors, and the priors it rests on."""

    failure_interval_s: float
    storage_bytes_per_s: float
    restart_s: float
    priors: tuple[Prior, ...]


def conditions(run: RunSpec, num_npus: int) -> Conditions:
    """What a run on `num_npus` cards meets."""
    known = priors()
    used: list[Prior] = []

    def taken(name: str, given: float | None) -> float:
        if given is not None:
            return given
        used.append(known[name])
        return known[name].value

    if run.failure_interval_h is not None:
        interval_s = HOUR_S * run.failure_interval_h
    else:
        of_a_card_s = HOUR_S * taken("npu_failure_interval_h", run.npu_failure_interval_h)
        interval_s = float(job_failure_interval_s(of_a_card_s, num_npus))
    each = None if run.storage_gb_per_s is None else run.storage_gb_per_s / num_npus
    storage = 1e9 * num_npus * taken("storage_gb_per_s_per_npu", each)
    return Conditions(interval_s, storage, taken("restart_s", run.restart_s), tuple(used))
