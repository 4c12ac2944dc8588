"""Fitting a handful of efficiencies with physical meaning to measured step times: maximum a posteriori, Gauss-Newton.

Parameters are logarithms of factors on the profile's values, with normal priors. Residuals are logarithms of predicted
over measured step time; a record far off counts with the weight of a Student distribution, so that one mislabelled run
does not move the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from autodeploy.messages import Message
from cost_models.arrays import Floats
from hardware_profiles.efficiencies import EFFICIENCY_TERMS, limited
from hardware_profiles.shipped_yaml import shipped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cost_models.collectives import Tier
    from hardware_profiles.profile import Profile

STEP = 0.02  # of a log factor, in the Jacobian
DEGREES = 4.0  # of the Student distribution of residuals
MOST_DEGREES = 1e30  # of freedom, with which a Student distribution is the normal one to every digit


@dataclass(frozen=True, slots=True)
class FitParameter:
    """One free factor: which efficiencies it multiplies, and how far it may stray (log standard deviation).

    degrees : of freedom of the Student distribution of its prior; infinite for a normal one.
    """

    name: str
    multiplies: tuple[str, ...]
    prior_sigma: float
    meaning: str
    degrees: float = np.inf

    def multiplies_any(self, prefix: str) -> bool:
        """Whether it multiplies numbers whose names begin so: links, releases."""
        return any(name.startswith(prefix) for name in self.multiplies)


Moved = tuple[FitParameter, float, float]


@dataclass(frozen=True)
class Fit:
    """The estimate of the parameters (log factors) with their covariance, and the linear model around it.

    upper : of the log factors [parameters]; infinite where there is no limit.
    """

    parameters: tuple[FitParameter, ...]
    log_factors: Floats
    covariance: Floats
    residuals: Floats
    jacobian: Floats
    weights: Floats
    upper: Floats

    def moved(self) -> list[Moved]:
        """Each parameter with its log factor and the standard deviation of that."""
        sigmas = np.sqrt(np.diag(self.covariance))
        return list(zip(self.parameters, self.log_factors, sigmas, strict=True))

    def factors(self) -> dict[str, float]:
        """Factor per parameter name."""
        return {p.name: float(np.exp(v)) for p, v in zip(self.parameters, self.log_factors, strict=True)}


# Residuals at given log factors [records] and their slopes there [records, parameters].
Linear = Callable[[Floats], tuple[Floats, Floats]]


def values_of(parameters: Sequence[FitParameter], log_factors: Floats, base: Mapping[str, float]) -> dict[str, float]:
    """Efficiencies under log factors: the profile's own values times their factors, fractions kept below one."""
    values = dict(base)
    for parameter, value in zip(parameters, log_factors, strict=True):
        for name in parameter.multiplies:
            values[name] = limited(name, float(values.get(name, 1.0) * np.exp(value)))
    return values


def fit(
    parameters: Sequence[FitParameter],
    linear: Linear,
    sigma: Floats,
    *,
    upper: Floats | None = None,
    share: Floats | None = None,
    start: Floats | None = None,
    iterations: int = 8,
    degrees: float = DEGREES,
) -> Fit:
    """Maximum a posteriori estimate.

    linear : log(predicted / measured) of every record and its slopes; `differences` makes it of residuals alone.
    sigma : noise of each record, log standard deviation [records].
    upper : limits of the log factors [parameters], none without it.
    share : weight of each record [records], one without it.
    start : log factors to start from; the priors' without it.
    degrees : of freedom of the Student distribution of residuals; infinite for a normal one, which knows no outliers.
    """
    count = len(parameters)
    upper = np.full(count, np.inf) if upper is None else upper
    share = np.ones(len(sigma)) if share is None else share
    theta = np.zeros(count) if start is None else np.minimum(start, upper)
    current, jacobian = linear(theta)
    for _ in range(iterations):
        weights = share * _precisions(current, sigma, degrees)
        change = _solve(jacobian, current, weights, theta, prior_precisions(parameters, theta), upper)
        scale = 1.0
        before = _loss(current, sigma, share, degrees, theta, parameters)
        while scale > 0.05:
            trial = theta + scale * change
            after, slopes = linear(trial)
            if _loss(after, sigma, share, degrees, trial, parameters) < before:
                break
            scale /= 2.0
        else:
            break
        theta, moved = trial, float(np.max(np.abs(scale * change)))
        current, jacobian = after, slopes
        if moved < 1e-4:
            break
    weights = share * _precisions(current, sigma, degrees)
    covariance = covariance_at(jacobian, weights, prior_precisions(parameters, theta))
    return Fit(tuple(parameters), theta, covariance, current, jacobian, weights, upper)


def left_out_residuals(result: Fit, groups: Sequence[str]) -> Floats:
    """Residuals of every record predicted by a fit to the records of all other groups.

    The model is linear in the log factors near the fit, so each refit is one weighted solve.
    """
    labels = np.asarray(groups)
    residuals = np.empty_like(result.residuals)
    for label in np.unique(labels):
        inside = labels == label
        residuals[inside] = result.residuals[inside] + result.jacobian[inside] @ refit(result, ~inside)
    return residuals


def refit(result: Fit, fitted: npt.NDArray[np.bool_]) -> Floats:
    """Change of the log factors [parameters] under a fit to the records marked `fitted`."""
    prior = prior_precisions(result.parameters, result.log_factors)
    linear = result.jacobian[fitted], result.residuals[fitted], result.weights[fitted]
    return _solve(*linear, result.log_factors, prior, result.upper)


def _precisions(values: Floats, sigma: Floats, degrees: Floats | float) -> Floats:
    """1 / sigma^2 of the normal distributions that pull as strongly as Student's do at these values."""
    degrees = np.minimum(degrees, MOST_DEGREES)
    return np.asarray((degrees + 1.0) / (degrees + (values / sigma) ** 2) / sigma**2)


def _loss(
    residuals: Floats, sigma: Floats, share: Floats, degrees: float, theta: Floats, parameters: Sequence[FitParameter]
) -> float:
    """Of the records and of the priors."""
    of_records = share * _deviance(residuals, sigma, degrees)
    return 0.5 * float(of_records.sum() + _deviance(theta, *_priors(parameters)).sum())


def _deviance(values: Floats, sigma: Floats, degrees: Floats | float) -> Floats:
    """-2 log density of Student distributions, less its value at 0."""
    degrees = np.minimum(degrees, MOST_DEGREES)
    return np.asarray((degrees + 1.0) * np.log1p((values / sigma) ** 2 / degrees))


def _priors(parameters: Sequence[FitParameter]) -> tuple[Floats, Floats]:
    return np.array([p.prior_sigma for p in parameters]), np.array([p.degrees for p in parameters])


def prior_precisions(parameters: Sequence[FitParameter], log_factors: Floats) -> Floats:
    """1 / sigma^2 of the normal priors that pull as the parameters' own do at these log factors."""
    return _precisions(log_factors, *_priors(parameters))


def covariance_at(jacobian: Floats, weights: Floats, prior: Floats) -> Floats:
    """Laplace: the inverse of the Gauss-Newton Hessian of the loss, records and priors together."""
    information = jacobian.T @ (weights[:, None] * jacobian)
    information += np.diag(prior)
    return np.asarray(np.linalg.inv(information), dtype=np.float64)


def _solve(jacobian: Floats, residuals: Floats, weights: Floats, theta: Floats, prior: Floats, upper: Floats) -> Floats:
    """Change of the log factors to the optimum of the linear model; what would pass its limit is held there."""
    change, free = np.zeros_like(theta), np.ones(len(theta), dtype=np.bool_)
    while True:
        at_bounds = residuals + jacobian[:, ~free] @ change[~free]
        slopes = jacobian[:, free]
        information = slopes.T @ (weights[:, None] * slopes) + np.diag(prior[free])
        gradient = slopes.T @ (weights * at_bounds) + theta[free] * prior[free]
        change[free] = np.linalg.solve(information, -gradient)
        over = free & (theta + change > upper)
        if not over.any():
            return change
        change[over] = upper[over] - theta[over]
        free &= ~over


def limits_of(parameters: Sequence[FitParameter], base: Mapping[str, float]) -> Floats:
    """Upper limits of the log factors [parameters]: a fraction of a peak stays below one."""
    terms = [[name for name in parameter.multiplies if name in EFFICIENCY_TERMS] for parameter in parameters]
    limits = [[np.log(EFFICIENCY_TERMS[name].upper / base[name]) for name in names] for names in terms]
    return np.array([min(each, default=np.inf) for each in limits], dtype=np.float64)


def differences(residuals: Callable[[Floats], Floats]) -> Linear:
    """Residuals with their slopes by forward differences."""

    def linear(theta: Floats) -> tuple[Floats, Floats]:
        current, columns = residuals(theta), []
        for number in range(len(theta)):
            for size in (STEP, -STEP):
                moved = theta.copy()
                moved[number] += size
                column = (residuals(moved) - current) / size
                if column.any():  # a fraction at its limit of one moves downwards only
                    break
            columns.append(column)
        return current, np.stack(columns, axis=1)

    return linear


# Factors of numbers outside the profile's efficiencies: the path of each.
ELSEWHERE = {
    "vector_op": "fixed_costs.vector_op_us",
    "host_issue": "host.issue_us_per_op",
    "host_sync": "host.sync_us",
}


# Numbers that no run tells, with the width of each.
PRIOR_WIDTHS: list[dict[str, Any]] = shipped("autodeploy.calibration", "prior_widths.yaml")["numbers"]


def _rows(rows: list[dict[str, Any]]) -> tuple[FitParameter, ...]:
    return tuple(
        FitParameter(**{**row, "multiplies": tuple(row["multiplies"]), "meaning": meaning_of(row)}) for row in rows
    )


def meaning_of(row: Mapping[str, Any]) -> Message:
    """Meaning of a number of a table, in a person's language."""
    return Message.of_record(f"uncertain_number.{row.get('record', row['name'])}", row["meaning"])


def source_of(row: Mapping[str, Any]) -> Message:
    """Basis of a number of a table, in a person's language."""
    return Message.of_record(f"uncertain_basis.{row.get('record', row['name'])}", row["source"])


# Free parameters of each device family.
_PARAMETERS = shipped("autodeploy.calibration", "parameters.yaml")
COMMON = _rows(_PARAMETERS["common"])
PARAMETERS: dict[str, tuple[FitParameter, ...]] = {name: _rows(rows) for name, rows in _PARAMETERS["families"].items()}


def as_assumed(name: str, *multiplies: str) -> FitParameter:
    """A factor as uncertain as the first number that it multiplies is before any measurement."""
    term = EFFICIENCY_TERMS[multiplies[0]]
    return FitParameter(name, multiplies, term.prior_sigma, term.meaning)


# What no fit of the records moves freely.
UNFITTED = tuple(as_assumed(row["name"], *row["multiplies"]) for row in PRIOR_WIDTHS if "unfitted" in row)
# Those of them that are in every fit with their priors, so that what the records do tell is as uncertain as these make
# it. No run waits for its host long enough to tell them: their spread stays the prior's.
NUISANCES = tuple(parameter for parameter in UNFITTED if parameter.name in ELSEWHERE)
# A network that no run has measured: rate of collectives on each of its tiers.
LINK_SIGMA = 0.30


def nuisances_of(profile: Profile) -> tuple[FitParameter, ...]:
    """The nuisances whose number nobody measured on the device."""
    return tuple(p for p in NUISANCES if not measured_elsewhere(profile).intersection(p.multiplies))


def measured_elsewhere(profile: Profile) -> frozenset[str]:
    """Factors of numbers outside the efficiencies that somebody measured on the device."""
    return frozenset(name for name, path in ELSEWHERE.items() if profile.quantity(path).kind == "measured")


def portable_parameters(family: str) -> tuple[FitParameter, ...]:
    """Parameters of a family that say something of another device: neither links nor releases."""
    of_family = PARAMETERS.get(family, COMMON)
    return tuple(p for p in of_family if not any(map(p.multiplies_any, ("link_", "release_"))))


def link_parameters(tiers: Iterable[Tier], sigma: float = LINK_SIGMA) -> tuple[FitParameter, ...]:
    """One factor for each of these tiers, as uncertain as where nothing measured it."""
    meaning = Message("calibration.collective_bandwidth")
    return tuple(FitParameter(f"link_{t.name}", (f"link_{t.name}",), sigma, meaning) for t in tiers)
