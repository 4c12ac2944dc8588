"""One cluster's own overlay: the family's few factors once more, around the profile as it ships, fitted to its runs.

What a cluster's runs can't tell apart stays where the shipped profile has it, so one run is enough to begin with.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autodeploy.calibration.fit import (
    DEGREES,
    PARAMETERS,
    STEP,
    Fit,
    FitParameter,
    fit,
    left_out_residuals,
    limits_of,
    link_parameters,
    nuisances_of,
    portable_parameters,
    prior_precisions,
)
from autodeploy.calibration.overlays import covariance_of_matrix, overlay_numbers, unfitted_beside
from autodeploy.calibration.profile_fit import NOISE
from autodeploy.costs.prediction_spread import REPEAT_NOISE, carried_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autodeploy.calibration.fit import Moved
    from cost_models.arrays import Floats
    from hardware_profiles.profile import Profile

# Of the cards and the software of one cluster against those of the records: the spread of left-out residuals of a
# class of records (9 to 12 %), which is what one cluster's common error looks like from outside.
# Few clusters are far off, and those that are by more than a normal distribution of this width would have.
SOFTWARE = FitParameter(
    "software", ("release_current",), 0.10, "time against the runs the profile was fitted to", degrees=DEGREES
)
# Where records have fitted the family, its shipped values are known better than its priors said.
FITTED_WIDTH = 0.5
ITERATIONS = 4
# Configurations of which one may be an outlier. Of fewer, nothing tells a mislabelled run from a cluster that is far
# off the prediction; runs are held against strategy, batch and cards of their plan before they come here.
TELLS_OUTLIERS = 3
# Of a step: a part that is shorter than this is known no better than if it were as long.
LEAST_SHARE = 0.1

Overlay = dict[str, Any]
Scenario = Mapping[str, float]


@dataclass(frozen=True)
class ClusterRun:
    """A run that says something of the step time.

    predict : seconds of a step under an overlay, by part, in each world in which parameters have moved from it, by name
    and logarithm. group : runs of one configuration, which are predicted alike and left out together. parts : seconds
    of these parts, where a profiler told them apart; they add up to the step.
    """

    id: str
    group: str
    measured_s: float
    spread: float
    predict: Callable[[Overlay, Sequence[FitParameter], Sequence[Scenario]], list[dict[str, float]]]
    parts: Mapping[str, float] = field(default_factory=dict)
    work: str = ""


@dataclass(frozen=True)
class ClusterFit:
    """The overlay of a cluster and log(predicted / measured) of each run: without it, with it, and left out of it.

    alike : what the runs of each work leave uncertain about plans that have it, as the overlay's evidence holds it.
    """

    overlay: Overlay
    fit: Fit
    before: Floats
    after: Floats
    left_out: Floats
    alike: list[dict[str, Any]]


def cluster_parameters(profile: Profile, pinned: Mapping[str, Any]) -> tuple[FitParameter, ...]:
    """The factors that a cluster's runs may move: its family's, its host's, each of its tiers and its software.

    profile : with `pinned` applied.
    pinned : overlay of what benchmarks measured on the cluster; a run does not move it.
    """
    origin = profile.document.calibration.spread_of or carried_from(profile.family) or ""
    family = profile.family if profile.family in PARAMETERS else origin
    own = portable_parameters(family)
    if profile.family in PARAMETERS:
        own = tuple(replace(p, prior_sigma=FITTED_WIDTH * p.prior_sigma) for p in own)
    measured = {f"link_{name}" for name in pinned if name not in {"profile", "efficiency", "release_factors"}}
    measured |= set(pinned.get("efficiency", {}))
    links = link_parameters(profile.tiers)
    return tuple(p for p in (*own, *nuisances_of(profile), *links, SOFTWARE) if not measured & set(p.multiplies))


def fit_cluster(profile: Profile, runs: Sequence[ClusterRun], pinned: Overlay, source: str) -> ClusterFit:
    """Maximum a posteriori fit of a cluster's factors to its runs.

    profile : as shipped, with `pinned` applied.
    source : what the overlay's numbers say they come from.
    """
    parameters = cluster_parameters(profile, pinned)
    rows = _rows(runs)
    configurations = {run.group: run for run in runs}

    def linear_at(overlay: Overlay, moving: tuple[FitParameter, ...]) -> tuple[Floats, Floats]:
        """The residuals [rows], and their forward differences by each parameter [rows, parameters], without limits of
        fractions: all priced together."""
        worlds: list[Scenario] = [{}, *({p.name: STEP} for p in moving)]
        predicted = {group: run.predict(overlay, moving, worlds) for group, run in configurations.items()}
        errors = np.array([row.residual(each) for row in rows for each in predicted[row.run.group]], dtype=np.float64)
        errors = errors.reshape(len(rows), len(worlds))
        return errors[:, 0].copy(), np.asarray((errors[:, 1:] - errors[:, :1]) / STEP)

    def linear(log_factors: Floats) -> tuple[Floats, Floats]:
        moved = ((p, value, 0.0) for p, value in zip(parameters, log_factors, strict=True))
        return linear_at(overlay_with(profile, pinned, moved, source), parameters)

    noise = np.array([row.noise() for row in rows], dtype=np.float64)
    share = np.array([row.share for row in rows], dtype=np.float64)
    degrees = DEGREES if len(configurations) >= TELLS_OUTLIERS else np.inf
    upper = limits_of(parameters, profile.efficiency)
    fitted = fit(parameters, linear, noise, upper=upper, share=share, iterations=ITERATIONS, degrees=degrees)
    overlay = overlay_with(profile, pinned, fitted.moved(), source)
    shared = SOFTWARE.prior_sigma**2
    covariance = covariance_of_matrix(parameters, fitted.covariance, source, in_residuals=shared)
    plain = {group: run.predict({"profile": profile.name}, (), [{}])[0] for group, run in configurations.items()}
    before = np.array([row.residual(plain[row.run.group]) for row in rows], dtype=np.float64)
    left_out = left_out_residuals(fitted, [row.run.group for row in rows])
    steps = np.array([row.part is None for row in rows], dtype=np.bool_)
    unfitted = unfitted_beside(profile, parameters)
    _, exercised = linear_at(overlay, unfitted)
    overlay["covariance"] = covariance.model_dump(mode="json", exclude_defaults=True)
    alike = _alike(rows, fitted, unfitted, exercised, source)
    return ClusterFit(overlay, fitted, before[steps], fitted.residuals[steps], left_out[steps], alike)


def _alike(
    rows: Sequence[_Row], fitted: Fit, unfitted: tuple[FitParameter, ...], exercised: Floats, source: str
) -> list[dict[str, Any]]:
    """Of every work that the rows' runs had."""
    entries = []
    for work in dict.fromkeys(row.run.work for row in rows if row.run.work):
        same = [row.run.work == work for row in rows]
        noise = np.array([row.noise(model=not own) for row, own in zip(rows, same, strict=True)], dtype=np.float64)
        moved = np.array([row.part_of_step if own else 0.0 for row, own in zip(rows, same, strict=True)])
        entries.append(alike_runs(work, fitted, noise, moved, source, unfitted, exercised))
    return entries


def alike_runs(
    work: str,
    fitted: Fit,
    noise: Floats,
    discrepancy: Floats,
    source: str,
    unfitted: Sequence[FitParameter],
    exercised: Floats,
) -> dict[str, Any]:
    """The entry of an overlay's evidence for one kind of work: what its runs leave uncertain about plans that have it.

    The error that the model makes of the work itself is in both of their step times. A fit takes it for noise; of a
    plan with the same work it is not, and what the fit has absorbed of it is known. So it is with numbers that no fit
    has, such as those of large networks: where the runs exercised them, the fitted factors made up for their errors.

    work : its digest.
    noise : standard deviation of every residual [rows] as a plan with this work sees it: of the runs that had it only
        what repeats differ by, of the others the model's error of theirs too.
    discrepancy : by how much each residual moves with one unit of the model's log error of this work [rows].
    unfitted : factors of numbers that the fit does not move; exercised : slopes of the residuals [rows, unfitted].

    Notes
    -----
    The fit is linear near its optimum: log factors = K (measured), K = C G^T W with its covariance C, Jacobian G and
    weights W. For true log factors theta of prior covariance P, an error s of the work and noise N, the estimate is off
    by (K G - 1) theta + K d s + K n; hence the covariance (1 - K G) P (1 - K G)^T + K N K^T, and the factors that
    follow one unit of s, K d. Numbers that no fit has stay where they are, off by -u, and the estimate by K H u more,
    H their slopes: theta and u together are as a fit to G and H would leave them that has no gain for u.
    """
    gain = np.zeros((len(fitted.parameters) + len(unfitted), len(noise)))
    gain[: len(fitted.parameters)] = fitted.covariance @ fitted.jacobian.T * fitted.weights
    jacobian = np.concatenate([fitted.jacobian, exercised], axis=1)
    known = 1.0 / prior_precisions(fitted.parameters, fitted.log_factors)
    left = np.eye(len(gain)) - gain @ jacobian
    prior = np.diag([*known, *(parameter.prior_sigma**2 for parameter in unfitted)])
    matrix = left @ prior @ left.T + (gain * noise**2) @ gain.T
    covariance = covariance_of_matrix((*fitted.parameters, *unfitted), matrix, source)
    return {
        "work": work,
        "absorbed": [float(value) for value in gain @ discrepancy],
        "covariance": covariance.model_dump(mode="json", exclude_defaults=True),
    }


@dataclass(frozen=True)
class _Row:
    """One residual of a run: of its whole step, or of a part of it.

    A part's residual and its noise are shares of the step: one that hardly takes time says hardly anything. Parts that
    add up to the step say what it says, so that it does not count beside them.

    part : of a profiled step; None: the whole one. plain_s : step time of the same configuration without a profiler,
    which slows a step: the parts then say how this time splits.
    """

    run: ClusterRun
    part: str | None = None
    plain_s: float | None = None

    @property
    def share(self) -> float:
        return 0.0 if self.part is None and (self.run.parts or self.plain_s is not None) else 1.0

    @property
    def part_of_step(self) -> float:
        return 1.0 if self.part is None else self.run.parts[self.part] / self.run.measured_s

    def noise(self, *, model: bool = True) -> float:
        spread = self.run.spread if self.plain_s is None else 0.0
        sigma = float(np.hypot(NOISE if model else REPEAT_NOISE, spread))
        return sigma * max(self.part_of_step, LEAST_SHARE)

    def residual(self, predicted: Mapping[str, float]) -> float:
        if self.part is None:
            return float(np.log(sum(predicted.values()) / self.run.measured_s))
        return predicted[self.part] / (self.plain_s or self.run.measured_s) - self.part_of_step


def _rows(runs: Sequence[ClusterRun]) -> list[_Row]:
    """Whole steps first, in the order of the runs."""
    plain: dict[str, list[float]] = {run.group: [] for run in runs if run.parts}
    for run in runs:
        if run.group in plain and not run.parts:
            plain[run.group].append(run.measured_s)
    medians = {group: float(np.median(steps)) for group, steps in plain.items() if steps}
    whole = [_Row(run, plain_s=medians.get(run.group)) for run in runs]
    return [*whole, *(_Row(run, part, medians.get(run.group)) for run in runs for part in run.parts)]


def overlay_with(profile: Profile, pinned: Overlay, moved: Iterable[Moved], source: str) -> Overlay:
    """Overlay of benchmarks and of the parameters as far as they have moved."""
    document = copy.deepcopy(pinned) | {"profile": profile.name}
    for section, numbers in overlay_numbers(profile, moved, kind="fitted", source=source).items():
        document[section] = {**document.get(section, {}), **numbers}
    return document
