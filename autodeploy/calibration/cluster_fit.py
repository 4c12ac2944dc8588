"""One cluster's own overlay: the family's few factors once more, around the profile as it ships, fitted to its runs.

What a cluster's runs can't tell apart stays where the shipped profile has it, so one run is enough to begin with.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.calibrate import NOISE
from autodeploy.calibration.covariances import covariance_document, covariance_of_fit
from autodeploy.calibration.coverage import carried_from
from autodeploy.calibration.fit import Fit, FitParameter, fit, left_out_residuals
from autodeploy.calibration.overlay_numbers import overlay_numbers, rounded
from autodeploy.calibration.parameters import PARAMETERS, known_parameters, link_parameters, nuisances_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

# Of the cards and the software of one cluster against those of the records: the spread of left-out residuals of a
# class of records (9 to 12 %), which is what one cluster's common error looks like from outside.
SOFTWARE = FitParameter("software", ("release_current",), 0.10, "time against the runs the profile was fitted to")
# Where records have fitted the family, its shipped values are known better than its priors said.
FITTED_WIDTH = 0.5
ITERATIONS = 3

Overlay = dict[str, Any]


@dataclass(frozen=True)
class ClusterRun:
    """A run that says something of the step time.

    predict : seconds of a step under an overlay. group : runs of one configuration, which are predicted alike and left
        out together.
    """

    id: str
    group: str
    measured_s: float
    spread: float
    predict: Callable[[Overlay], float]


@dataclass(frozen=True)
class ClusterFit:
    """The overlay of a cluster and log(predicted / measured) of each run: without it, with it, and left out of it."""

    overlay: Overlay
    fit: Fit
    before: Floats
    after: Floats
    left_out: Floats


def cluster_parameters(profile: Profile, pinned: Mapping[str, Any]) -> tuple[FitParameter, ...]:
    """The factors that a cluster's runs may move: its family's, its host's, each of its tiers and its software.

    Parameters
    ----------
    profile : with `pinned` applied.
    pinned : overlay of what benchmarks measured on the cluster; a run does not move it.
    """
    origin = profile.document.calibration.spread_of or carried_from(profile.family) or ""
    family = profile.family if profile.family in PARAMETERS else origin
    own = [
        p for p in known_parameters(family) if not any(name.startswith(("link_", "release_")) for name in p.multiplies)
    ]
    if profile.family in PARAMETERS:
        own = [replace(p, prior_sigma=FITTED_WIDTH * p.prior_sigma) for p in own]
    links = link_parameters(tier.name for tier in profile.tiers)
    measured = {f"link_{name}" for name in pinned if name not in {"profile", "efficiency", "release_factors"}}
    measured |= set(pinned.get("efficiency", {}))
    return tuple(p for p in (*own, *nuisances_of(profile), *links, SOFTWARE) if not measured & set(p.multiplies))


def fit_cluster(profile: Profile, runs: Sequence[ClusterRun], pinned: Overlay, source: str) -> ClusterFit:
    """Maximum a posteriori fit of a cluster's factors to its runs.

    Parameters
    ----------
    profile : as shipped, with `pinned` applied.
    source : what the overlay's numbers say they come from.
    """
    parameters = cluster_parameters(profile, pinned)
    measured = np.array([run.measured_s for run in runs], dtype=np.float64)
    sigma = np.array([float(np.hypot(NOISE, run.spread)) for run in runs], dtype=np.float64)

    configurations = {run.group: run for run in runs}

    def residuals_of(overlay: Overlay) -> Floats:
        predicted = {group: run.predict(overlay) for group, run in configurations.items()}
        return np.log(np.array([predicted[run.group] for run in runs], dtype=np.float64) / measured)

    def residuals(log_factors: Floats) -> Floats:
        return residuals_of(_overlay(profile, pinned, _at(parameters, log_factors), source))

    found = fit(parameters, residuals, sigma, iterations=ITERATIONS)
    overlay = _overlay(profile, pinned, found, source)
    overlay["covariance"] = covariance_document(covariance_of_fit(found, source, in_residuals=SOFTWARE.prior_sigma**2))
    before = residuals_of({"profile": profile.name})
    left_out = left_out_residuals(found, [run.group for run in runs])
    return ClusterFit(overlay, found, before, residuals_of(overlay), left_out)


def _at(parameters: tuple[FitParameter, ...], log_factors: Floats) -> Fit:
    """The parameters at given values, for reading their numbers only."""
    count = len(parameters)
    nothing = np.zeros(0)
    no_limit = np.full(count, np.inf)
    return Fit(parameters, log_factors, np.zeros((count, count)), nothing, np.zeros((0, count)), nothing, no_limit)


def _overlay(profile: Profile, pinned: Overlay, found: Fit, source: str) -> Overlay:
    document = copy.deepcopy(pinned) | {"profile": profile.name}
    for section, numbers in overlay_numbers(profile, found, kind="fitted", source=source).items():
        document[section] = {**document.get(section, {}), **numbers}
    return document


def factors_of(found: ClusterFit) -> dict[str, float]:
    """Factor of each parameter on the shipped value, four significant digits."""
    return {name: rounded(value, 4) for name, value in found.fit.factors().items()}
